// tests/transport/mpi.cpp: what MpiTransport does beyond the conformance body. Four ranks.
#include <transport/on_mpi.hpp>

#include <hvd/algorithm/native.hpp>
#include <hvd/hvd.hpp>

#include <support/verifiable.hpp>

#include <climits>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace hvd::test;
using hvd::MpiTransport;

namespace {

/// f(transport) on the first `size` ranks, with a deadline that only a hang reaches.
template <class F>
void on(int size, const F& f) {
  on_mpi::run(size, f);
}

/// The error that f throws, of that kind.
template <class F>
std::string complaint(hvd::error_kind kind, F f, int culprit = -1) {
  try {
    f();
  } catch (const hvd::error& e) {
    require(e.kind() == kind && e.rank() == culprit, std::string("another error: ") + e.what());
    return e.what();
  }
  require(false, "nothing was thrown");
  return {};
}
void same(const std::string& got, const std::string& want) { require(got == want, "it says: " + got); }
void starts(const std::string& got, const std::string& want) { require(got.starts_with(want), "it says: " + got); }

std::byte* raw(auto& buffer) { return reinterpret_cast<std::byte*>(buffer.data()); }

/// An allreduce of the type, by MPI if it `can`, and by the default in any case.
template <class T, class Op>
void check(MpiTransport& comm, const Op& op, bool can) {
  const std::string what = std::string(hvd::name(hvd::dtype_of<T>)) + " by " + __PRETTY_FUNCTION__;
  for (const std::size_t n : {0U, 1U, 7U, 333U}) {
    auto in = comm.alloc_shared<T>(n), by_default = comm.alloc_shared<T>(n), blocking = comm.alloc_shared<T>(n),
         under_way = comm.alloc_shared<T>(n), at_root = comm.alloc_shared<T>(n);
    for (std::size_t i = 0; i != n; ++i) in[i] = input<T>(op, i, comm.rank(), comm.size());
    const auto right = [&](const hvd::shared_array<T>& got) {
      for (std::size_t i = 0; i != n; ++i)
        require(got[i] == expected<T>(op, i, comm.size()), [&] { return "wrong: " + what; });
    };
    const hvd::reduction r = hvd::make_reduction<T>(op, comm.size());
    hvd::allreduce(comm, in, by_default, op);
    right(by_default);
    const bool did = comm.native(hvd::allreduce_call{raw(in), raw(blocking), n, r});
    require(did || !can, "MPI cannot do " + what);
    if (did) right(blocking);
    auto request = comm.start(hvd::allreduce_call{raw(in), raw(under_way), n, r});
    require(static_cast<bool>(request) == did, "blocking and non-blocking differ on " + what);
    request.wait();
    if (did) right(under_way);
    const int root = comm.size() - 1;
    require(comm.native(hvd::reduce_call{raw(in), raw(at_root), n, r, root}) == did, "allreduce but not reduce");
    if (did && comm.rank() == root) right(at_root);
  }
}
template <class T>
void check_numbers(MpiTransport& comm, bool can) {
  check<T>(comm, hvd::sum, can);
  check<T>(comm, hvd::average, can);
  check<T>(comm, hvd::product, can);
  check<T>(comm, hvd::scaled(hvd::sum, 2.0, 0.5), can);
  check<T>(comm, hvd::scaled(hvd::average, 2.0, 3.0), can);
}
template <class T>
void check_order(MpiTransport& comm) {
  check<T>(comm, hvd::min, false);
  check<T>(comm, hvd::max, false);
}

}  // namespace

TEST_CASE("the library says its name and version") {
  const std::string name = MpiTransport::library();
  CHECK(name.find("MPI") != std::string::npos);
  CHECK(name.find_first_of("0123456789") != std::string::npos);
  CHECK(name.find('\n') == std::string::npos);
}

TEST_CASE("the communicator is duplicated, and its error handler stays") {
  on_first(3, [](MPI_Comm part) {
    MPI_Errhandler before = MPI_ERRHANDLER_NULL, after = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(part, &before);
    int rank = 0;
    MPI_Comm_rank(part, &rank);
    {
      MpiTransport comm(part);
      require(comm.rank() == rank && comm.size() == 3, "another group than the communicator's");
      // A message of the program's own, with the tag that hvd uses, is none of hvd's.
      int mine = rank + 100, got = 0;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(&mine, 1, MPI_INT, (rank + 1) % 3, 0, part, &request);
      const float x = static_cast<float>(rank);
      float y = -1;
      comm.exchange(reinterpret_cast<const std::byte*>(&x), 4, (rank + 1) % 3, reinterpret_cast<std::byte*>(&y), 4,
                    (rank + 2) % 3);
      require(y == static_cast<float>((rank + 2) % 3), "a message of another communicator");
      MPI_Recv(&got, 1, MPI_INT, (rank + 2) % 3, 0, part, MPI_STATUS_IGNORE);
      require(got == (rank + 2) % 3 + 100, "the program's message is gone");
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Comm_get_errhandler(part, &after);
    require(before == after && after == MPI_ERRORS_ARE_FATAL, "another error handler");
  });
}

TEST_CASE("what is no group is refused") {
  on_first(2, [](MPI_Comm part) {
    same(complaint(hvd::error::invalid_argument, [] { MpiTransport none(MPI_COMM_NULL); }),
         "hvd: MpiTransport: MPI_COMM_NULL has no ranks");
    int rank = 0;
    MPI_Comm_rank(part, &rank);
    MPI_Comm alone = MPI_COMM_NULL, inter = MPI_COMM_NULL;
    MPI_Comm_split(part, rank, 0, &alone);
    MPI_Intercomm_create(alone, 0, part, 1 - rank, 5, &inter);
    same(complaint(hvd::error::invalid_argument, [&] { MpiTransport two(inter); }),
         "hvd: MpiTransport: an intercommunicator is not one group; MPI_Intercomm_merge makes one of it");
    MPI_Comm_free(&inter);
    MPI_Comm_free(&alone);
  });
}

TEST_CASE("ranks that differ refuse each other, all of them") {
  on_first(3, [](MPI_Comm part) {
    int rank = 0;
    MPI_Comm_rank(part, &rank);
    const std::string v(hvd::version);
    same(complaint(
             hvd::error::mismatch, [&] { MpiTransport comm(part, {.most = rank == 1 ? 10U : 20U}); }, 1),
         "hvd: MpiTransport: rank 0 has hvd " + v + " and takes 20 elements at once, rank 1 has hvd " + v +
             " and takes 10; build all ranks from one version, with the same options");
  });
}

TEST_CASE("a message of another length is dropped, and the group stays usable") {
  on(2, [](MpiTransport& comm) {
    std::vector<std::byte> data(100000, std::byte{7});
    for (const std::size_t n : {0U, 3U, 99999U}) {
      if (comm.rank() == 0) {
        const std::string text = complaint(
            hvd::error::mismatch, [&] { comm.recv(data.data(), n + 1, 1); }, 1);
        same(text, "hvd: recv on rank 0 of 2 (MPI): expected " + std::to_string(n + 1) +
                       " bytes from rank 1 but it sent " + std::to_string(n) + "; the message was dropped");
        const std::string longer = complaint(
            hvd::error::mismatch, [&] { comm.exchange(data.data(), 10, 1, data.data(), n, 1); }, 1);
        same(longer, "hvd: exchange on rank 0 of 2 (MPI): expected " + std::to_string(n) +
                         " bytes from rank 1 but it sent " + std::to_string(n + 1) + "; the message was dropped");
      } else {
        comm.send(data.data(), n, 0);
        comm.send(data.data(), n + 1, 0);
        comm.recv(data.data(), 10, 0);
      }
    }
    std::vector<int> x{comm.rank() + 1};
    hvd::allreduce(comm, x);
    require(x[0] == 3, "unusable");
  });
}

TEST_CASE("a rank that is not there, and messages to itself") {
  on(2, [](MpiTransport& comm) {
    const int r = comm.rank();
    std::vector<std::byte> data(1000000, std::byte(r)), got(1000000);
    const std::string me = " on rank " + std::to_string(r) + " of 2 (MPI): ";
    for (const int peer : {-1, 2}) {
      same(complaint(hvd::error::invalid_argument, [&] { comm.send(data.data(), 3, peer); }),
           "hvd: send" + me + "there is no rank " + std::to_string(peer) + "; allowed: 0 to 1");
    }
    same(complaint(hvd::error::invalid_argument, [&] { comm.recv(got.data(), 3, r); }),
         "hvd: recv" + me + "no message to itself was sent before, and nobody else can send one");
    comm.send(data.data(), data.size(), r);
    comm.send(data.data(), 2, r);
    comm.exchange(data.data(), 5, 1 - r, got.data(), got.size(), r);  // one direction to the other, one to itself
    require(got == data, "another message to itself");
    comm.recv(got.data(), 5, 1 - r);
    require(got[0] == std::byte(1 - r), "the messages are mixed up");
    same(complaint(
             hvd::error::mismatch, [&] { comm.recv(got.data(), 3, r); }, r),
         "hvd: recv" + me + "expected 3 bytes from itself but they were 2; the message was dropped");
  });
}

TEST_CASE("a limit for one call, by an algorithm of hvd's") {
  on_first(3, [](MPI_Comm part) {
    MpiTransport comm(part, {.timeout = std::chrono::minutes(5)});
    std::vector<float> x(10);
    if (comm.rank() != 2) {
      const std::string text = complaint(
          hvd::error::timeout,
          [&] { hvd::broadcast(comm, x, 2, hvd::within(std::chrono::milliseconds(100), hvd::tree{})); }, 2);
      starts(text, "hvd: recv on rank " + std::to_string(comm.rank()) +
                       " of 3 (MPI): rank 2 did not answer within 0.100000 s");
    }
    require(comm.timeout() == std::chrono::minutes(5), "another timeout after the call");
    MPI_Barrier(part);
  });
}

TEST_CASE("a silent rank is named when the time is over, again and again") {
  on_first(3, [](MPI_Comm part) {
    MpiTransport comm(part, {.timeout = std::chrono::milliseconds(100)});
    std::byte one{};
    const char* const tail = " s (raise HVD_TIMEOUT or mpi_options::timeout if it is only slow)";
    if (comm.rank() == 0) {
      const std::string text = complaint(
          hvd::error::timeout, [&] { comm.recv(&one, 1, 2); }, 2);
      same(text, std::string("hvd: recv on rank 0 of 3 (MPI): rank 2 did not answer within 0.100000") + tail);
      const auto same_again = [&](auto f) { same(complaint(hvd::error::timeout, f, 2), text); };
      same_again([&] { comm.send(&one, 1, 1); });
      same_again([&] { comm.barrier(); });
      same_again([&] { comm.check(); });
      same_again([&] { static_cast<void>(comm.arrived(1)); });
      require(comm.waiting_for() == -1, "it waits for somebody");
      same_again([&] { static_cast<void>(comm.split(0, 0)); });
      same_again([&] { comm.native(hvd::broadcast_call{&one, &one, 1, 0}); });
      same_again([&] { static_cast<void>(comm.start(hvd::broadcast_call{&one, &one, 1, 0})); });
    } else if (comm.rank() == 1) {
      starts(complaint(
                 hvd::error::timeout, [&] { comm.barrier(); }, 0),
             "hvd: barrier on rank 1 of 3 (MPI): rank 0 did not answer within");
    }
    MPI_Barrier(part);
  });
}

TEST_CASE("other threads see for whom a rank waits") {
  on_first(3, [](MPI_Comm part) {
    const common_words seen(part, 1);
    MpiTransport comm(part);
    std::byte one{};
    require(comm.waiting_for() == -1, "it waits for somebody");
    if (comm.rank() == 0) {
      std::thread watch([&] {
        for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
             std::chrono::steady_clock::now() < until && seen[0].load() == 0;) {
          if (comm.waiting_for() == 2) seen[0].store(1);
          std::this_thread::yield();
        }
        if (seen[0].load() == 0) seen[0].store(2);
      });
      comm.recv(&one, 1, 2);
      watch.join();
      require(comm.waiting_for() == -1, "it waits for somebody");
    } else if (comm.rank() == 2) {
      while (seen[0].load() == 0) std::this_thread::yield();
      comm.send(&one, 1, 0);
    }
    comm.barrier();
    require(seen[0].load() == 1, "nobody saw for whom rank 0 waits");
  });
}

TEST_CASE("MPI reduces integers, floating-point numbers, complex numbers and bool") {
  for (const int size : {2, 4}) {
    on(size, [](MpiTransport& comm) {
      check_numbers<std::int32_t>(comm, true);
      check_numbers<std::uint64_t>(comm, true);
      check_numbers<float>(comm, true);
      check_numbers<double>(comm, true);
      check_numbers<std::complex<float>>(comm, true);
      check_numbers<std::complex<double>>(comm, true);
      check<bool>(comm, hvd::min, true);
      check<bool>(comm, hvd::max, true);
      check<std::int64_t>(comm, hvd::min, true);
      check<std::int16_t>(comm, hvd::max, true);
    });
  }
}
TEST_CASE("what only some MPIs reduce as hvd does is right in any case") {
  on(3, [](MpiTransport& comm) {
    check_numbers<std::int8_t>(comm, false);
    check_numbers<std::uint8_t>(comm, false);
    check_numbers<std::int16_t>(comm, false);
    check_numbers<std::uint16_t>(comm, false);
    check_numbers<std::uint32_t>(comm, false);
    check_numbers<std::int64_t>(comm, false);
    check_order<std::int8_t>(comm);
    check_order<std::uint8_t>(comm);
    check_order<std::uint16_t>(comm);
    check_order<std::int32_t>(comm);
    check_order<std::uint32_t>(comm);
    check_order<std::uint64_t>(comm);
  });
}
TEST_CASE("what MPI does not know is done by hvd's algorithms") {
  on(3, [](MpiTransport& comm) {
    check_numbers<hvd::half>(comm, false);
    check_numbers<hvd::bfloat16>(comm, false);
    check_order<float>(comm);
    check_order<double>(comm);
    check<affine>(comm, compose{}, false);
    check<std::uint32_t>(comm, exclusive_or{}, false);
    std::vector<float> x{comm.rank() == 1 ? NAN : 1.0f};
    hvd::allreduce(comm, x, hvd::max);
    require(x[0] != x[0], "a NaN on one rank is a NaN");

    std::vector<hvd::half> h(2);
    const auto none = [&](const auto& call) { return !comm.native(call) && !comm.start(call); };
    const hvd::reduction r = hvd::make_reduction<hvd::half>(hvd::sum, 3);
    const hvd::partition blocks(3, 2, 2);
    std::vector<hvd::half> all(6);
    require(none(hvd::allreduce_call{raw(h), raw(h), 2, r}) && none(hvd::reduce_call{raw(h), raw(h), 2, r, 0}) &&
                none(hvd::reduce_scatter_call{raw(all), raw(h), blocks, r}) &&
                none(hvd::scan_call{raw(h), raw(h), 2, r}) && none(hvd::exscan_call{raw(h), raw(h), 2, r}),
            "MPI reduces half");
    same(complaint(hvd::error::unsupported, [&] { hvd::allreduce(comm, h, hvd::sum, hvd::native{}); }),
         "hvd: allreduce of float16 by sum on rank " + std::to_string(comm.rank()) +
             " of 3: the transport itself does not have this collective; use automatic, ring, tree, double_tree, "
             "recursive_doubling or halving_doubling");
    comm.barrier();
  });
}

TEST_CASE("collectives under way") {
  on(4, [](MpiTransport& comm) {
    const int r = comm.rank();
    std::vector<float> a(1000, static_cast<float>(r + 1)), b(4), c{static_cast<float>(r)}, all(4), in(4, 3.0f);
    const hvd::reduction mean = hvd::make_reduction<float>(hvd::average, 4);
    const hvd::reduction scaled = hvd::make_reduction<float>(hvd::scaled(hvd::sum, 2.0, 0.5), 4);
    const hvd::partition each(4, 1, 4);
    const std::vector<std::size_t> counts{0, 1, 2, 3};
    const hvd::partition uneven(counts, 4);
    std::vector<float> mine(static_cast<std::size_t>(r), static_cast<float>(r)), gathered(6), reduced(1), to_root(4);

    auto first = comm.start(hvd::allreduce_call{raw(a), raw(a), a.size(), mean});
    auto second = comm.start(hvd::allgather_call{raw(c), raw(all), each});
    auto third = comm.start(hvd::reduce_scatter_call{raw(in), raw(reduced), each, scaled});
    auto fourth = comm.start(hvd::reduce_call{raw(in), raw(to_root), 4, scaled, 2});
    auto fifth = comm.start(hvd::allgather_call{raw(mine), raw(gathered), uneven});
    b.assign(4, static_cast<float>(r));
    auto sixth = comm.start(hvd::broadcast_call{raw(b), raw(b), 16, 3});
    comm.barrier();  // messages in between
    require(first && second && third && fourth && fifth && sixth, "a request that is none");
    MpiTransport::request moved = std::move(sixth);
    require(!sixth && sixth.done(), "a moved-from request");
    moved.wait();
    fifth.wait();
    while (!first.done()) {
    }
    require(first.done(), "done stays done");
    second.wait();
    third.wait();
    fourth.wait();
    for (const float x : a) require(x == 2.5f, "average of 1 to 4");
    require(all == std::vector<float>{0, 1, 2, 3}, "allgather");
    require(reduced[0] == 12.0f, "reduce_scatter with scale");
    require(to_root == std::vector<float>(4, r == 2 ? 12.0f : 0.0f), "reduce with scale");
    require(gathered == std::vector<float>{1, 2, 2, 3, 3, 3}, "allgather of different blocks");
    require(b == std::vector<float>(4, 3.0f), "broadcast");
    require(in == std::vector<float>(4, 3.0f), "the input");

    // In place, where the result lies in the input.
    std::vector<float> own{1, 2, 3, 4};
    const hvd::reduction sum = hvd::make_reduction<float>(hvd::sum, 4);
    comm.start(hvd::reduce_scatter_call{raw(own), raw(own) + each.offset(r), each, sum}).wait();
    std::vector<float> want{1, 2, 3, 4};
    want[static_cast<std::size_t>(r)] *= 4;
    require(own == want, "reduce_scatter in place");
  });
}
TEST_CASE("a request that is dropped has ended") {
  on(3, [](MpiTransport& comm) {
    std::vector<int> x(50000, 1);
    const hvd::reduction r = hvd::make_reduction<int>(hvd::sum, 3);
    for (int k = 0; k != 3; ++k) {
      auto dropped = comm.start(hvd::allreduce_call{raw(x), raw(x), x.size(), r});
      if (k == 1) dropped = {};
    }
    for (const int value : x) require(value == 27, "it went on after its end");
  });
}

TEST_CASE("any number but no_group is a color") {
  on(4, [](MpiTransport& comm) {
    const int colors[] = {INT_MIN + 1, -1, INT_MAX, -1};
    MpiTransport part = comm.split(colors[comm.rank()], -comm.rank());
    require(part.size() == (comm.rank() % 2 == 0 ? 1 : 2), "a group of equal colors");
    require(part.rank() == (comm.rank() == 1 ? 1 : 0), "ordered by key");
    MpiTransport moved = std::move(part);
    std::vector<int> sum{comm.rank()};
    hvd::allreduce(moved, sum);
    require(sum[0] == (comm.rank() % 2 == 0 ? comm.rank() : 4), "another group");
    for (int k = 0; k != 100; ++k) moved = comm.split(comm.rank() / 2, k);
    require(moved.size() == 2, "the last of many groups");
  });
}

TEST_CASE("alloc_shared gives private memory, zero and on a page") {
  on(2, [](MpiTransport& comm) {
    hvd::shared_array<double> kept;
    {
      MpiTransport other = comm.split(0, 0);
      kept = other.alloc_shared<double>(1000);
      require(other.alloc_shared<int>(0).empty(), "nothing");
    }
    require(reinterpret_cast<std::uintptr_t>(kept.data()) % 4096 == 0, "not on a page");
    for (double& x : kept) require(std::exchange(x, 1.0) == 0.0, "not zero");
    const std::size_t wraps = (std::size_t{1} << 61) + 2;
    starts(complaint(hvd::error::no_memory, [&] { static_cast<void>(comm.alloc_shared<double>(wraps)); }),
           "hvd: alloc_shared on rank ");
  });
}

TEST_CASE("MPI behind an any_transport: the environment chooses it, and it does what MPI does") {
  on(1, [](MpiTransport&) {});  // MPI is initialised, and keeps its level
  for (const bool levels : {false, true}) {
    using two_levels = hvd::Hierarchical<hvd::ShmTransport, MpiTransport>;
    hvd::any_transport any = levels ? hvd::any_transport::from_environment<two_levels>("mpi")
                                    : hvd::any_transport::from_environment<MpiTransport>("mpi");
    require((any.target<MpiTransport>() != nullptr) == !levels, "another transport");
    require((any.target<two_levels>() != nullptr) == levels, "another transport");
    std::vector<int> values(1000, any.rank() + 1), more(7, any.rank());
    hvd::allreduce(any, values);
    require(values == std::vector<int>(1000, any.size() * (any.size() + 1) / 2), "a wrong sum");
    hvd::broadcast(any, hvd::tensors(values, more), any.size() - 1);
    require(more == std::vector<int>(7, any.size() - 1), "a wrong broadcast");
    hvd::any_transport half = any.split(any.rank() % 2, 0);
    std::vector<int> members(1, 1);
    hvd::allreduce(half, members);
    require(members[0] == half.size(), "a wrong sum in a part");
    hvd::barrier(any);
  }
}
