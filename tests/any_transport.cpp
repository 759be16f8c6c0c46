// tests/any_transport.cpp: a transport whose type is chosen at run time does what the one that it holds does.
#include <hvd/any_transport.hpp>
#include <hvd/hvd.hpp>

#include <support/front_door.hpp>
#include <transport/conformance.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

using namespace hvd::test;
using hvd::any_transport;

namespace {

/// The ranks of `Run`, each behind an any_transport.
template <class Run>
struct behind_any {
  using transport = any_transport;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& opts = long_deadline()) {
    Run::run(
        size,
        [&](auto& comm) {
          any_transport any(std::move(comm));
          f(any);
        },
        opts);
  }
};
using any_threads = behind_any<on_threads>;

/// A transport for several hosts, as far as the choice is concerned.
struct far_transport : hvd::SelfTransport {
  static constexpr std::string_view timeline_name = "FAR";
  static far_transport from_environment() { return {}; }
  far_transport split(int, int) { return {}; }
};

/// A transport of a user's own that can send and receive, and no more.
struct plain_transport {
  hvd::SelfTransport alone{};
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  void barrier() {}
  void send(const std::byte* data, std::size_t bytes, int peer) { alone.send(data, bytes, peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) { alone.recv(data, bytes, peer); }
  template <class Call>
  bool native(const Call&) {
    return false;
  }
};
static_assert(hvd::SendRecv<plain_transport> && !hvd::Probing<plain_transport> && !hvd::Splitting<plain_transport>);

/// One that can do all that an engine needs but make groups.
struct whole_transport : plain_transport {
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    alone.exchange(out, out_bytes, to, in, in_bytes, from);
  }
  bool arrived(int peer) { return alone.arrived(peer); }
  void check() {}
};
static_assert(hvd::Probing<whole_transport> && !hvd::Splitting<whole_transport>);

struct always_tree {
  hvd::choice operator()(const hvd::workload&) const { return hvd::choice::tree; }
  friend bool operator==(const always_tree&, const always_tree&) = default;
};

/// Sets variables of the environment while it exists, and clears those that would name a job.
class environment {
 public:
  environment(std::initializer_list<std::pair<const char*, const char*>> set) : set_(set) {
    for (const auto& [name, value] : set_) ::setenv(name, value, 1);
  }
  environment(const environment&) = delete;
  environment& operator=(const environment&) = delete;
  ~environment() {
    for (const auto& [name, value] : set_) ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, const char*>> set_;
};

}  // namespace

TEST_CASE("any: every collective, 4 bytes an element") {
  conformance_collectives<any_threads, std::int32_t, hvd::sum_t>(any_threads::sizes, false);
  conformance_collectives<behind_any<on_processes>, std::int32_t, hvd::sum_t>({3}, false);
}
TEST_CASE("any: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<any_threads, affine, compose>({1, 3}, false);
}
TEST_CASE("any: every root, blocks of different sizes") {
  conformance_roots<any_threads>();
  conformance_uneven_blocks<any_threads>();
}
TEST_CASE("any: groups of a group, barrier") {
  conformance_split<any_threads>();
  conformance_barrier<any_threads>();
}

TEST_CASE("any: a limit for one call, and a transport without one") {
  conformance_limit_is_over<any_threads>();
  any_transport any{plain_transport{}};
  float x = 1;
  CHECK(complaint([&] { hvd::allreduce(any, &x, 1, hvd::sum, hvd::within(std::chrono::seconds(2))); }) ==
        "unsupported: hvd: within on rank 0 of 1: the transport that this any_transport holds has no timeout");
}

TEST_CASE("any: lists of tensors have the results that they have on the transport itself") {
  everywhere([](auto& comm) {
    std::vector<float> a = ramp(comm.rank(), 5), b = ramp(comm.rank(), 70000), c = a, d = b;
    std::vector<double> e = ramp<double>(comm.rank(), 3), f = e;
    hvd::allreduce(comm, hvd::tensors(a, b), hvd::average);
    hvd::allreduce(comm, hvd::tensors(e), hvd::reduce_op::adasum);
    any_transport any(std::move(comm));
    hvd::allreduce(any, hvd::tensors(c, d), hvd::average);
    CHECK(a == c);
    CHECK(b == d);
    hvd::allreduce(any, hvd::tensors(f), hvd::reduce_op::adasum);
    CHECK(e == f);
    const int last = any.size() - 1;
    std::vector<float> g = ramp(any.rank(), 9);
    hvd::broadcast(any, hvd::tensors(g, f), last);
    CHECK(g == ramp(last, 9));
  });
}

TEST_CASE("any: messages, and memory that ranks share") {
  everywhere([](auto& comm) {
    any_transport any(std::move(comm));
    const int next = (any.rank() + 1) % any.size(), before = (any.rank() + any.size() - 1) % any.size();
    const std::vector<float> out = ramp(any.rank(), 100);
    std::vector<float> in(100);
    hvd::send(any, out, next);
    hvd::recv(any, in, before);
    CHECK(in == ramp(before, 100));

    hvd::shared_array<float> shared = any.template alloc_shared<float>(1000);
    REQUIRE(shared.size() == 1000);
    CHECK(shared[999] == 0.0f);
    for (float& x : shared) x = 1.0f;
    hvd::allreduce(any, shared);
    CHECK(shared[999] == static_cast<float>(any.size()));
    CHECK(any.template alloc_shared<float>(0).empty());
    CHECK_THROWS_AS(static_cast<void>(any.template alloc_shared<double>(SIZE_MAX / 4)), hvd::error);
    hvd::allreduce(any, shared);
    CHECK(shared[0] == static_cast<float>(any.size() * any.size()));
  });
}

TEST_CASE("any: a bad argument of one rank is an error on all, and the group goes on") {
  for (const bool check : {false, true}) {
    everywhere(
        [&](auto& comm) {
          const bool all_hear = check && comm.size() > 1;
          any_transport any(std::move(comm));
          std::vector<int> values(4, 1);
          const bool wrong = any.rank() == 0 || !check;
          const doctest::String got =
              complaint([&] { hvd::allreduce(any, values, std::span(values).first(wrong ? 3 : 4)); });
          if (wrong) {
            CHECK(got == refused("allreduce", any, "output has 3 elements; allowed: 4 (as the input)").c_str());
          } else if (all_hear) {
            CHECK(got == doctest::Contains("invalid_argument"));
          }
          hvd::allreduce(any, values);
          CHECK(values[0] == any.size());
          if (!all_hear) return;
          CHECK(complaint([&] { hvd::allreduce(any, std::span(values).first(any.rank() == 0 ? 3 : 4)); }) ==
                doctest::Contains("mismatch"));
        },
        check);
  }
}

TEST_CASE("any: algorithms by name run over its messages, and native is what the transport has") {
  for (const bool check : {false, true}) {
    everywhere(
        [&](auto& comm) {
          any_transport any(std::move(comm));
          const int p = any.size();
          const std::vector<double> in = ramp<double>(any.rank(), 1001);
          std::vector<double> expected(1001), out(1001);
          hvd::allreduce(any, in, expected);
          const auto same = [&](const auto& how) {
            std::fill(out.begin(), out.end(), -1.0);
            hvd::allreduce(any, in, out, hvd::sum, how);
            CHECK(out == expected);
          };
          same(hvd::ring{});
          same(hvd::tree{});
          same(hvd::recursive_doubling{});
          same(hvd::halving_doubling{});
          same(hvd::double_tree{});
          same(hvd::automatic<always_tree>{});
          std::vector<int> blocks(static_cast<std::size_t>(p), any.rank()), turned(blocks.size());
          hvd::alltoall(any, blocks, turned, hvd::bruck{});
          for (int r = 0; r != p; ++r) CHECK(turned[static_cast<std::size_t>(r)] == r);
          const doctest::String own = complaint([&] { hvd::allreduce(any, in, out, hvd::sum, hvd::native{}); });
          if (p > 1) CHECK(own == doctest::Contains("the transport itself does not have this collective"));
          if (!check || p == 1) return;
          // Ranks that differ are told, and go on.
          CHECK(complaint([&] {
                  if (any.rank() == 0) {
                    hvd::allreduce(any, in, out, hvd::sum, hvd::ring{});
                  } else {
                    hvd::allreduce(any, in, out, hvd::sum, hvd::tree{});
                  }
                }) == doctest::Contains("mismatch"));
          CHECK(complaint([&] {
                  hvd::allreduce(any, in, std::span(out).first(any.rank() == 0 ? 1001 : 7), hvd::sum, hvd::ring{});
                }) != "accepted");
          hvd::allreduce(any, in, out, hvd::sum, hvd::ring{});
          CHECK(out == expected);
        },
        check);
  }
}

TEST_CASE("any: exchange, hosts, names, and what a transport lacks") {
  everywhere([](auto& comm) {
    const std::string_view name = hvd::timeline_name_of<std::remove_cvref_t<decltype(comm)>>;
    any_transport any(std::move(comm));
    const int p = any.size(), next = (any.rank() + 1) % p, before = (any.rank() + p - 1) % p;
    const std::vector<float> out = ramp(any.rank(), 70'000);
    std::vector<float> in(out.size());
    any.exchange(reinterpret_cast<const std::byte*>(out.data()), 280'000, next, reinterpret_cast<std::byte*>(in.data()),
                 280'000, before);
    CHECK(in == ramp(before, 70'000));
    CHECK(any.host_of() == std::vector<int>(static_cast<std::size_t>(p)));
    CHECK(any.held_name() == name);
    any.set_timeout(std::chrono::seconds(100));
    CHECK(any.template map_shared<float>(-1, 10).empty());
  });
  any_transport plain(plain_transport{});
  std::byte b{};
  CHECK(complaint([&] { plain.exchange(&b, 1, 0, &b, 1, 0); }) ==
        doctest::Contains("unsupported: hvd: exchange on rank 0 of 1: this transport lacks exchange"));
  CHECK(complaint([&] { static_cast<void>(plain.split(0, 0)); }) ==
        "unsupported: hvd: split on rank 0 of 1: this transport lacks split (see Splitting in hvd/transport.hpp), "
        "which this needs");
  CHECK(complaint([&] { static_cast<void>(plain.without_lost()); }) ==
        "unsupported: hvd: without_lost on rank 0 of 1: this transport lacks without_lost, which this needs");
  CHECK(complaint([&] { static_cast<void>(plain.alloc_shared<float>(1)); }) ==
        doctest::Contains("unsupported: hvd: alloc_shared on rank 0 of 1: this transport lacks alloc_shared"));
  CHECK(complaint([&] { static_cast<void>(plain.tagged_messages()); }) ==
        doctest::Contains("unsupported: hvd: rank 0 of 1: this transport has no tagged messages"));
}

TEST_CASE("any: it gives back the transport that it holds") {
  everywhere([](auto& comm) {
    using held = std::remove_reference_t<decltype(comm)>;
    any_transport any(std::move(comm)), other(hvd::SelfTransport{});
    REQUIRE(any.template target<held>() != nullptr);
    CHECK(any.template target<held>()->size() == any.size());
    CHECK(any.template target<far_transport>() == nullptr);
    held* const before = any.template target<held>();
    other = std::move(any);
    CHECK(other.template target<held>() == before);
    float x[] = {1.0f};
    hvd::allreduce(*before, x, hvd::sum);
    hvd::allreduce(other, x, hvd::sum);
    CHECK(x[0] == static_cast<float>(other.size() * other.size()));
  });
}

TEST_CASE("any: the environment names the transport") {
  const auto chosen = [](const char* given = nullptr) { return any_transport::from_environment<far_transport>(given); };
  CHECK(any_transport::from_environment().target<hvd::ShmTransport>() != nullptr);
  CHECK(chosen().target<hvd::ShmTransport>() != nullptr);
  CHECK(chosen("far").target<far_transport>() != nullptr);
  {
    const environment set{{"HVD_TRANSPORT", "far"}};
    CHECK(chosen().target<far_transport>() != nullptr);
    CHECK(chosen("shm").target<hvd::ShmTransport>() != nullptr);
    CHECK(complaint([] { any_transport::from_environment(); }) ==
          "invalid_argument: hvd: HVD_TRANSPORT=\"far\" is not a transport of this program; allowed: auto, shm");
    CHECK(complaint([&] { chosen("smoke"); }) ==
          "invalid_argument: hvd: transport=\"smoke\" is not a transport of this program; allowed: auto, shm, far");
  }
  const environment two_hosts{
      {"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}, {"HOROVOD_LOCAL_RANK", "0"}, {"HOROVOD_LOCAL_SIZE", "1"}};
  CHECK(chosen().target<far_transport>() != nullptr);
  CHECK(chosen("auto").target<far_transport>() != nullptr);
  CHECK(complaint([] { any_transport::from_environment(); }) == doctest::Contains("ranks of one host only"));
}

TEST_CASE("any: an engine over a transport that cannot probe or split is refused with a sentence") {
  any_transport any{plain_transport()};
  CHECK_THROWS_WITH_AS(hvd::Engine{any},
                       doctest::Contains("Engine on rank 0 of 1: this transport lacks exchange, arrived or check"),
                       hvd::error);
  any_transport whole{whole_transport()};
  CHECK_THROWS_WITH_AS(hvd::Engine{whole}, doctest::Contains("Engine on rank 0 of 1: this transport lacks split"),
                       hvd::error);
}
