// Ranks in different calls: with HVD_CHECK the same error on all of them and a group that goes on; without it never a
// hang, never a byte outside a buffer.
#include <hvd/hvd.hpp>

#include "support/messages_only.hpp"
#include "support/processes.hpp"
#include "support/require.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::test::children;
using hvd::test::now;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;

hvd::sharing_options options_in(const private_directory& d, bool check, double timeout) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = std::chrono::duration<double>(timeout);
  o.failure.start_timeout = std::chrono::seconds(60);
  o.failure.check = check;
  return o;
}

std::string new_job() {
  static int number = 0;
  return "agree-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

// f(comm) on `size` ranks, as processes and then as threads of one process.
template <class F>
void on_both(int size, bool check, F f) {
  const private_directory d;
  const auto opts = options_in(d, check, 30.0);
  {
    const std::string job = new_job();
    children ranks(size);
    ranks.start_all([&](int r, report&) {
      hvd::ShmTransport comm(job, r, size, opts);
      f(comm);
    });
    REQUIRE_MESSAGE(ranks.wait(120.0), "a rank hangs");
    for (int r = 0; r != size; ++r) {
      CAPTURE(r);
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
    }
  }
  children threads(1);
  threads.start(0, [&](report&) {
    hvd::thread_run(
        size, [&](hvd::ThreadTransport& comm) { f(comm); }, opts);
  });
  REQUIRE_MESSAGE(threads.wait(120.0), "a thread hangs");
  CAPTURE(threads[0].text());
  CHECK(threads.status(0) == 0);
}

template <class T>
void check_works(T& comm) {
  for (const std::size_t n : {std::size_t{3}, std::size_t{30'000}}) {
    std::vector<int> data(n, comm.rank() + 1);
    hvd::allreduce(comm, data);
    const int sum = comm.size() * (comm.size() + 1) / 2;
    require(data.front() == sum && data.back() == sum, "the transport does not work any more");
  }
  hvd::barrier(comm);
}

// The call throws an error of this kind that says all of `texts`; then everything works.
template <class T, class F>
void check_refused(T& comm, const std::string& name, error_kind kind, const std::vector<std::string>& texts, F&& call) {
  try {
    call();
  } catch (const hvd::error& e) {
    const std::string what = e.what();
    require(e.kind() == kind, name + ": another kind: " + what);
    for (const std::string& t : texts)
      require(what.find(t) != std::string::npos, name + ": no '" + t + "' in: " + what);
    return check_works(comm);
  }
  require(false, name + ": no error");
}

// Algorithms that differ by their types alone.
template <int>
struct nameless {
  template <class T, class Call>
  void operator()(T& comm, const Call& call) const {
    hvd::direct{}(comm, call);
  }
};

template <class T>
void different_calls(T& comm, int odd) {
  const int p = comm.size(), r = comm.rank();
  const std::size_t ranks = static_cast<std::size_t>(p);
  const bool other = r == odd;
  const int second = odd == 0 ? 1 : odd;  // rank 0 is compared with the others in turn
  const std::string at_0 = " on rank 0", at_second = " on rank " + std::to_string(second);
  const std::string both = "ranks 0 and " + std::to_string(second) + " are in different calls";
  // What rank 0 and the other one named have, for a value that the odd rank has differently.
  const auto values = [&](const std::string& what, const std::string& usual, const std::string& odds) {
    return std::vector<std::string>{both, what + " " + (odd == 0 ? odds : usual) + at_0,
                                    (odd == 0 ? usual : odds) + at_second};
  };
  const auto refused = [&](const std::string& name, const std::vector<std::string>& texts, auto&& call) {
    check_refused(comm, name, error_kind::mismatch, texts, call);
  };

  for (const std::size_t n : {std::size_t{4}, std::size_t{900}, std::size_t{40'000}}) {
    const auto text = [](std::size_t k) { return std::to_string(k); };
    const std::size_t m = other ? n + 1 : n;
    std::vector<float> one(m), all(m * ranks), result(m * ranks);
    std::vector<std::int32_t> ints(n);
    std::vector<std::byte> bytes(n);
    refused("count", values("count", text(n), text(n + 1)), [&] { hvd::allreduce(comm, one); });
    refused("reduce count", values("count", text(n), text(n + 1)), [&] { hvd::reduce(comm, one); });
    refused("broadcast count", values("bytes", text(4 * n), text(4 * n + 4)), [&] { hvd::broadcast(comm, one); });
    refused("allgather count", values("count", text(n * ranks), text((n + 1) * ranks)),
            [&] { hvd::allgather(comm, one, all); });
    refused("reduce_scatter count", {both}, [&] { hvd::reduce_scatter(comm, all, one); });
    refused("alltoall count", {both}, [&] { hvd::alltoall(comm, all, result); });
    refused("gather count", {both}, [&] { hvd::gather(comm, one, all); });
    refused("scatter count", {both}, [&] { hvd::scatter(comm, all, one); });

    one.resize(n);
    all.resize(n * ranks);
    result.resize(n * ranks);
    refused("type", values("element type", "float32", "int32"), [&] {
      if (other) {
        hvd::allreduce(comm, ints);
      } else {
        hvd::allreduce(comm, one);
      }
    });
    refused("element size", {both}, [&] {
      if (other) {
        std::vector<std::byte> all_bytes(n * ranks);
        hvd::allgather(comm, bytes, all_bytes);
      } else {
        hvd::allgather(comm, one, all);
      }
    });
    refused("op", values("reduction", "sum", "max"), [&] {
      if (other) {
        hvd::allreduce(comm, one, hvd::max);
      } else {
        hvd::allreduce(comm, one, hvd::sum);
      }
    });
    refused("scale", {both}, [&] { hvd::allreduce(comm, one, hvd::scaled(hvd::sum, other ? 2.0 : 3.0)); });
    const std::vector<std::string> by_another_way{both, "algorithm or its tunables differ: (hash) ", at_0, at_second};
    refused("algorithm", by_another_way, [&] {
      if (other) {
        hvd::allreduce(comm, one, hvd::sum, hvd::ring{});
      } else {
        hvd::allreduce(comm, one);
      }
    });
    refused("algorithm of broadcast", by_another_way, [&] {
      if (other) {
        hvd::broadcast(comm, one, 0, hvd::tree{});
      } else {
        hvd::broadcast(comm, one, 0, hvd::ring{});
      }
    });
    refused("tunable", by_another_way,
            [&] { hvd::allgather(comm, one, all, hvd::ring{.chunk_bytes = other ? 4096U : 8192U}); });
    refused("tunable of direct", by_another_way,
            [&] { hvd::allreduce(comm, one, hvd::sum, hvd::direct{.one_shot_bytes = other ? 512U : 1024U}); });
    if (other) {  // what is the same under another name is no difference
      hvd::allreduce(comm, one, hvd::sum, hvd::direct{});
    } else {
      hvd::allreduce(comm, one);
    }
    refused("algorithm without a name", by_another_way, [&] {
      if (other) {
        hvd::allreduce(comm, one, hvd::sum, nameless<1>{});
      } else {
        hvd::allreduce(comm, one, hvd::sum, nameless<0>{});
      }
    });
    const int root = other ? 1 : 0;
    refused("root of broadcast", values("root", "0", "1"), [&] { hvd::broadcast(comm, one, root); });
    refused("root of reduce", values("root", "0", "1"), [&] { hvd::reduce(comm, one, hvd::sum, root); });
    refused("root of gather", values("root", "0", "1"), [&] { hvd::gather(comm, one, all, root); });
    refused("root of scatter", values("root", "0", "1"), [&] { hvd::scatter(comm, all, one, root); });
    refused("operation", values("operation", "allreduce", "broadcast"), [&] {
      if (other) {
        hvd::broadcast(comm, one);
      } else {
        hvd::allreduce(comm, one);
      }
    });
    refused("barrier", values("operation", "allgather", "barrier"), [&] {
      if (other) {
        hvd::barrier(comm);
      } else {
        hvd::allgather(comm, one, all);
      }
    });
    refused("split", values("operation", "reduce_scatter", "split"), [&] {
      if (other) {
        (void)comm.split(0, r);
      } else {
        hvd::reduce_scatter(comm, all, one);
      }
    });
    refused("alloc_shared", values("operation", "alltoall", "alloc_shared"), [&] {
      if (other) {
        (void)comm.template alloc_shared<float>(n);
      } else {
        hvd::alltoall(comm, all, result);
      }
    });
    refused("size of alloc_shared", values("count", text(n), text(n + 1)),
            [&] { (void)comm.template alloc_shared<float>(other ? n + 1 : n); });
    refused("element of alloc_shared", {both}, [&] {
      if (other) {
        (void)comm.template alloc_shared<double>(n);
      } else {
        (void)comm.template alloc_shared<float>(n);
      }
    });

    auto shared = comm.template alloc_shared<float>(n + 1);
    const std::span<float> part(shared.data(), m);
    refused("count in shared memory", values("count", text(n), text(n + 1)), [&] { hvd::allreduce(comm, part); });

    std::vector<std::size_t> counts(ranks, n);
    if (other) std::swap(counts[0], counts[1]);
    if (other) ++counts[0], --counts[1];
    one.resize(counts[static_cast<std::size_t>(r)]);
    refused("counts of allgather_v", {both}, [&] { hvd::allgather_v(comm, one, all, counts); });
    refused("counts of reduce_scatter_v", {both}, [&] { hvd::reduce_scatter_v(comm, all, one, counts); });
    // The odd rank sends one element more to its neighbour, who does not know.
    std::vector<std::size_t> sends(ranks, n), receives(ranks, n);
    const int neighbour = (odd + 1) % p;
    if (other) ++sends[static_cast<std::size_t>(neighbour)];
    std::vector<float> out(n * ranks + (other ? 1 : 0));
    refused("counts of alltoall_v",
            {"rank " + std::to_string(odd) + " sends " + text(n + 1) + " elements to rank " +
             std::to_string(neighbour) + ", which expects " + text(n)},
            [&] { hvd::alltoall_v(comm, out, all, sends, receives); });
  }
}

TEST_CASE("with HVD_CHECK different calls are the same error on all ranks, and the group goes on") {
  for (const int size : {2, 3}) {
    for (const int odd : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(odd);
      on_both(size, true, [odd](auto& comm) { different_calls(comm, odd); });
    }
  }
}

// ---- arguments that are wrong on their own ------------------------------------------------------------------------

template <class T>
std::vector<std::pair<std::string, std::function<void(T&)>>> bad_calls() {
  static std::vector<float> v(1000);
  static std::vector<float> w(1000);
  float* const null = nullptr;
  using span = std::span<float>;
  const auto at = [](std::size_t offset, std::size_t n) { return span(v).subspan(offset, n); };
  const auto ranks = [](T& c) { return static_cast<std::size_t>(c.size()); };
  const auto counts = [](T& c, std::size_t n) {
    return std::vector<std::size_t>(static_cast<std::size_t>(c.size()), n);
  };
  return {
      {"allreduce: null", [=](T& c) { hvd::allreduce(c, null, 4); }},
      {"allreduce: null input", [=](T& c) { hvd::allreduce(c, null, w.data(), 4); }},
      {"allreduce: null output", [=](T& c) { hvd::allreduce(c, w.data(), null, 4); }},
      {"allreduce: lengths", [=](T& c) { hvd::allreduce(c, at(0, 4), span(w).first(5)); }},
      {"allreduce: overlap", [=](T& c) { hvd::allreduce(c, at(0, 8), at(7, 8)); }},
      {"allreduce: overlap backwards", [=](T& c) { hvd::allreduce(c, at(1, 8), at(0, 8)); }},
      {"reduce: root", [=](T& c) { hvd::reduce(c, at(0, 8), hvd::sum, c.size()); }},
      {"reduce: negative root", [=](T& c) { hvd::reduce(c, at(0, 8), hvd::sum, -1); }},
      {"reduce: overlap", [=](T& c) { hvd::reduce(c, at(0, 8), at(4, 8), hvd::sum, c.rank()); }},
      {"reduce: length", [=](T& c) { hvd::reduce(c, at(0, 8), span(w).first(7), hvd::sum, c.rank()); }},
      {"reduce_scatter: length", [=](T& c) { hvd::reduce_scatter(c, at(0, 8 * ranks(c) + 1), span(w).first(8)); }},
      {"reduce_scatter: overlap",
       [=](T& c) { hvd::reduce_scatter(c, at(0, 8 * ranks(c)), at(8 * static_cast<std::size_t>(c.rank()) + 1, 8)); }},
      {"reduce_scatter_v: counts",
       [=](T& c) { hvd::reduce_scatter_v(c, at(0, 8), span(w).first(8), std::vector<std::size_t>{8}); }},
      {"reduce_scatter_v: sum", [=](T& c) { hvd::reduce_scatter_v(c, at(0, 9), span(w).first(2), counts(c, 2)); }},
      {"allgather: length", [=](T& c) { hvd::allgather(c, at(0, 8), span(w).first(8 * ranks(c) - 1)); }},
      {"allgather: overlap",
       [=](T& c) { hvd::allgather(c, at(8 * static_cast<std::size_t>(c.rank()) + 1, 8), at(0, 8 * ranks(c))); }},
      {"allgather: null", [=](T& c) { hvd::allgather(c, null, w.data(), 4); }},
      {"allgather_v: counts",
       [=](T& c) { hvd::allgather_v(c, at(0, 8), span(w).first(16), std::vector<std::size_t>(ranks(c) + 1, 8)); }},
      {"allgather_v: own count",
       [=](T& c) { hvd::allgather_v(c, at(0, 7), span(w).first(8 * ranks(c)), counts(c, 8)); }},
      {"broadcast: root", [=](T& c) { hvd::broadcast(c, at(0, 8), c.size()); }},
      {"broadcast: negative root", [=](T& c) { hvd::broadcast(c, at(0, 8), -2); }},
      {"broadcast: lengths", [=](T& c) { hvd::broadcast(c, at(0, 8), span(w).first(9), c.rank()); }},
      {"broadcast: overlap", [=](T& c) { hvd::broadcast(c, at(0, 8), at(1, 8), c.rank()); }},
      {"alltoall: not a multiple",
       [=](T& c) { hvd::alltoall(c, at(0, ranks(c) * 3 + 1), span(w).first(ranks(c) * 3 + 1)); }},
      {"alltoall: lengths", [=](T& c) { hvd::alltoall(c, at(0, ranks(c) * 3), span(w).first(ranks(c) * 2)); }},
      {"alltoall: overlap", [=](T& c) { hvd::alltoall(c, at(0, ranks(c) * 3), at(1, ranks(c) * 3)); }},
      {"alltoall_v: counts",
       [=](T& c) {
         hvd::alltoall_v(c, at(0, 4), span(w).first(4), std::vector<std::size_t>{4}, std::vector<std::size_t>{4});
       }},
      {"alltoall_v: sum",
       [=](T& c) { hvd::alltoall_v(c, at(0, 5), span(w).first(3 * ranks(c)), counts(c, 3), counts(c, 3)); }},
      {"alltoall_v: in place",
       [=](T& c) { hvd::alltoall_v(c, at(0, 3 * ranks(c)), at(0, 3 * ranks(c)), counts(c, 3), counts(c, 3)); }},
      {"gather: root", [=](T& c) { hvd::gather(c, at(0, 8), span(w).first(8 * ranks(c)), c.size()); }},
      {"gather: length", [=](T& c) { hvd::gather(c, at(0, 8), span(w).first(8), c.rank()); }},
      {"gather_v: counts",
       [=](T& c) { hvd::gather_v(c, at(0, 8), span(w).first(8 * ranks(c)), std::vector<std::size_t>{}, c.rank()); }},
      {"scatter: root", [=](T& c) { hvd::scatter(c, at(0, 8 * ranks(c)), span(w).first(8), -1); }},
      {"scatter: length", [=](T& c) { hvd::scatter(c, at(0, 8 * ranks(c) - 1), span(w).first(8), c.rank()); }},
      {"scatter_v: own count",
       [=](T& c) { hvd::scatter_v(c, at(0, 8 * ranks(c)), span(w).first(9), counts(c, 8), c.rank()); }},
  };
}

template <class T>
std::vector<std::pair<std::string, std::function<void(T&)>>> bad_messages() {
  static std::array<float, 8> v{};
  return {
      {"send: no such rank", [=](T& c) { hvd::send(c, v, c.size()); }},
      {"send: negative rank", [=](T& c) { hvd::send(c, v, -1); }},
      {"send: null", [=](T& c) { hvd::send(c, std::span<float>(static_cast<float*>(nullptr), 3), 0); }},
      {"recv: no such rank", [=](T& c) { hvd::recv(c, v, 17); }},
      {"recv: null", [=](T& c) { hvd::recv(c, std::span<float>(static_cast<float*>(nullptr), 3), 0); }},
      {"exchange: no such rank", [=](T& c) { c.exchange(nullptr, 0, 0, nullptr, 0, c.size()); }},
  };
}

TEST_CASE("without HVD_CHECK arguments that are wrong on one rank send nothing: it alone throws, the group goes on") {
  on_both(3, false, [](auto& comm) {
    using T = std::remove_cvref_t<decltype(comm)>;
    auto calls = bad_calls<T>();
    for (auto& m : bad_messages<T>()) calls.push_back(std::move(m));
    for (const auto& [name, call] : calls) {
      if (comm.rank() == 1) {
        check_refused(comm, name, error_kind::invalid_argument, {"rank 1 of 3"}, [&] { call(comm); });
      } else {
        check_works(comm);
      }
    }
  });
}

TEST_CASE("a call that another process has overwritten is a disagreement, whatever its bytes are") {
  for (int byte = 0; byte != 256; ++byte) {
    std::array<hvd::detail::descriptor, 2> calls{};
    std::memset(static_cast<void*>(&calls[1]), byte, sizeof calls[1]);
    CAPTURE(byte);
    const auto why = hvd::detail::disagreement(calls, "allreduce", "rank 0 of 2");
    CHECK(why.has_value());
    if (why && byte != 0) CHECK(why->kind() == hvd::error_kind::invalid_argument);
  }
}

TEST_CASE("with HVD_CHECK arguments that are wrong on one rank are an error on all, and the group goes on") {
  on_both(3, true, [](auto& comm) {
    using T = std::remove_cvref_t<decltype(comm)>;
    std::vector<float> data(500, 1.0F);
    for (const auto& [name, call] : bad_calls<T>()) {
      check_refused(comm, name, error_kind::invalid_argument,
                    {"rank " + std::to_string(comm.rank()) + " of 3", comm.rank() == 2 ? ":" : "rank 2 called"}, [&] {
                      if (comm.rank() == 2) {
                        call(comm);
                      } else {
                        hvd::allreduce(comm, data);  // whatever it is
                      }
                    });
    }
    for (const auto& [name, call] : bad_messages<T>()) {  // not collective: nobody else is told
      if (comm.rank() == 1) {
        check_refused(comm, name, error_kind::invalid_argument, {"rank 1 of 3"}, [&] { call(comm); });
      } else {
        check_works(comm);
      }
    }
  });
}

// ---- without HVD_CHECK --------------------------------------------------------------------------------------------

// Floats between two zones that nobody may touch.
class guarded {
 public:
  explicit guarded(std::size_t n) : bytes_(2 * zone + n * sizeof(float), std::byte{0xa5}), n_(n) {}
  [[nodiscard]] std::span<float> data() { return {reinterpret_cast<float*>(bytes_.data() + zone), n_}; }
  void check() const {
    for (std::size_t i = 0; i != zone; ++i) {
      require(bytes_[i] == std::byte{0xa5} && bytes_[bytes_.size() - 1 - i] == std::byte{0xa5},
              "written outside a buffer");
    }
  }

 private:
  static constexpr std::size_t zone = 8192;
  std::vector<std::byte> bytes_;
  std::size_t n_;
};

struct act {
  const char* name;
  bool all_wait;  // every rank waits for every other one, so that a mismatch must come out
  std::function<void(hvd::ShmTransport&, std::span<float> one, std::span<float> all)> run;
};

const std::vector<act>& acts() {
  using T = hvd::ShmTransport;
  using span = std::span<float>;
  static const std::vector<act> list = {
      {"allreduce", true, [](T& c, span one, span) { hvd::allreduce(c, one); }},
      {"allreduce max", true, [](T& c, span one, span) { hvd::allreduce(c, one, hvd::max); }},
      {"allgather", true, [](T& c, span one, span all) { hvd::allgather(c, one, all); }},
      {"reduce_scatter", true, [](T& c, span one, span all) { hvd::reduce_scatter(c, all, one); }},
      {"alltoall", true, [](T& c, span, span all) { hvd::alltoall(c, all); }},
      {"alltoall_v", true,
       [](T& c, span one, span all) {
         const std::vector<std::size_t> counts(static_cast<std::size_t>(c.size()), one.size());
         std::vector<float> out(all.size());
         hvd::alltoall_v(c, all, out, counts, counts);
       }},
      {"barrier", true, [](T& c, span, span) { hvd::barrier(c); }},
      {"split", true, [](T& c, span, span) { (void)c.split(0, 0); }},
      {"alloc_shared", true, [](T& c, span one, span) { (void)c.alloc_shared<float>(one.size()); }},
      {"shared allreduce", true,
       [](T& c, span one, span) {
         auto s = c.alloc_shared<float>(one.size());
         hvd::allreduce(c, s);
       }},
      {"broadcast 0", false, [](T& c, span one, span) { hvd::broadcast(c, one, 0); }},
      {"broadcast 1", false, [](T& c, span one, span) { hvd::broadcast(c, one, 1); }},
      {"reduce 0", false, [](T& c, span one, span) { hvd::reduce(c, one, hvd::sum, 0); }},
      {"reduce 1", false, [](T& c, span one, span) { hvd::reduce(c, one, hvd::sum, 1); }},
      {"gather 0", false, [](T& c, span one, span all) { hvd::gather(c, one, all, 0); }},
      {"gather 1", false, [](T& c, span one, span all) { hvd::gather(c, one, all, 1); }},
      {"scatter 0", false, [](T& c, span one, span all) { hvd::scatter(c, all, one, 0); }},
      {"scatter 1", false, [](T& c, span one, span all) { hvd::scatter(c, all, one, 1); }},
      {"recv", true, [](T& c, span one, span) { hvd::recv(c, one, (c.rank() + 1) % c.size()); }},
      {"send", false, [](T& c, span one, span) { hvd::send(c, one, (c.rank() + 1) % c.size()); }},
      {"nothing", false, [](T&, span, span) {}},
  };
  return list;
}

// One rank does another thing, or the same with another length; then all try to go on.
void odd_one_out(const act& usual, std::size_t n, const act& odd, std::size_t m, int size, int odd_rank) {
  CAPTURE(std::string(usual.name));
  CAPTURE(n);
  CAPTURE(std::string(odd.name));
  CAPTURE(m);
  CAPTURE(size);
  CAPTURE(odd_rank);
  const private_directory d;
  const auto opts = options_in(d, false, 0.3);
  const std::string job = new_job();
  children ranks(size);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm(job, r, size, opts);
    const act& a = r == odd_rank ? odd : usual;
    const std::size_t count = r == odd_rank ? m : n;
    guarded one(count), all(count * static_cast<std::size_t>(size));
    try {
      a.run(comm, one.data(), all.data());
      mine.progress = 1;
      for (int i = 0; i != 4; ++i) hvd::barrier(comm);
      mine.progress = 2;
    } catch (const hvd::error& e) {
      mine.keep(e);
    }
    one.check();
    all.check();
  });
  REQUIRE_MESSAGE(ranks.wait(30.0), "a rank hangs");
  const bool must_fail = usual.all_wait && odd.all_wait;
  for (int r = 0; r != size; ++r) {
    CAPTURE(r);
    CAPTURE(ranks[r].text());
    CHECK(WIFEXITED(ranks.status(r)));
    CHECK(WEXITSTATUS(ranks.status(r)) == (ranks[r].kind == report::nothing ? 0 : 3));
    CHECK(ranks[r].kind != report::other);  // a guard zone
    if (must_fail) CHECK(ranks[r].kind != report::nothing);
    if (ranks[r].kind != report::nothing) {
      const bool expected = ranks[r].is(error_kind::mismatch) || ranks[r].is(error_kind::timeout) ||
                            ranks[r].is(error_kind::aborted) || ranks[r].is(error_kind::peer_lost);
      CHECK(expected);
    }
  }
}

// Elements: a line, one chunk, one shot and two, and more than the ring holds.
constexpr std::array<std::size_t, 6> lengths = {3, 9, 200, 3'000, 20'001, 60'000};

TEST_CASE("without HVD_CHECK different lengths never hang and never write outside a buffer") {
  for (const act& a : acts()) {
    const std::string name = a.name;
    if (name == "barrier" || name == "split" || name == "send" || name == "recv" || name == "nothing") continue;
    std::mt19937 dice(static_cast<unsigned>(name.size()) * 7919);
    for (std::size_t i = 0; i != lengths.size(); ++i) {
      const std::size_t n = lengths[i], m = i % 2 == 0 ? n + 1 : lengths[dice() % lengths.size()];
      if (n == m) continue;
      const int size = 2 + static_cast<int>(dice() % 2);
      odd_one_out(a, n, a, m, size, static_cast<int>(dice() % static_cast<unsigned>(size)));
    }
  }
}

TEST_CASE("without HVD_CHECK different operations never hang and never write outside a buffer") {
  std::mt19937 dice(1618);
  for (int i = 0; i != 160; ++i) {
    const act& a = acts()[dice() % acts().size()];
    const act& b = acts()[dice() % acts().size()];
    if (&a == &b) continue;
    const std::size_t n = lengths[dice() % lengths.size()], m = dice() % 2 == 0 ? n : lengths[dice() % lengths.size()];
    const int size = 2 + static_cast<int>(dice() % 2);
    odd_one_out(a, n, b, m, size, static_cast<int>(dice() % static_cast<unsigned>(size)));
  }
}

TEST_CASE("a forked child of a rank may ask but not act: invalid_argument, and the group does not notice") {
  for (const bool check : {false, true}) {
    const private_directory d;
    const auto opts = options_in(d, check, 20.0);
    const std::string job = new_job();
    children ranks(2);
    ranks.start_all([&](int r, report&) {
      hvd::ShmTransport comm(job, r, 2, opts);
      auto shared = comm.alloc_shared<float>(100);
      check_works(comm);
      const pid_t child = ::fork();
      if (child == 0) {
        int refusals = 0;
        std::vector<float> data(100'000), all(200'000);
        const auto refused = [&](auto&& call) {
          try {
            call();
          } catch (const hvd::error& e) {
            if (e.kind() == hvd::error::invalid_argument) ++refusals;
          }
        };
        refused([&] { hvd::allreduce(comm, std::span(data).first(3)); });
        refused([&] { hvd::allreduce(comm, data); });
        refused([&] { hvd::allreduce(comm, static_cast<float*>(nullptr), 3); });
        refused([&] { hvd::broadcast(comm, data); });
        refused([&] { hvd::allgather(comm, data, all); });
        refused([&] { hvd::allgather(comm, data, data); });
        refused([&] { hvd::barrier(comm); });
        refused([&] { hvd::send(comm, data, 1 - r); });
        refused([&] { hvd::recv(comm, data, 1 - r); });
        refused([&] { (void)comm.split(0, 0); });
        refused([&] { (void)comm.alloc_shared<float>(3); });
        refused([&] { hvd::ShmTransport again(comm); });
        if (comm.rank() == r && comm.size() == 2) ++refusals;
        {
          const hvd::ShmTransport ended = std::move(comm);
          const auto freed = std::move(shared);
        }
        ::_exit(refusals);
      }
      int status = 0;
      require(::waitpid(child, &status, 0) == child, "waitpid");
      require(WIFEXITED(status) && WEXITSTATUS(status) == 13,
              "the child ended with status " + std::to_string(status) + " (exit code << 8)");
      check_works(comm);
      std::fill(shared.begin(), shared.end(), 1.0F);
      hvd::allreduce(comm, shared);
      require(shared[99] == 2.0F, "wrong sum in shared memory");
    });
    REQUIRE(ranks.wait(60.0));
    for (int r = 0; r != 2; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
    }
  }
}

TEST_CASE("ranks without common memory compare their calls by messages") {
  CHECK(hvd::fork_run(3, [](hvd::ShmTransport& started) {
          ::setenv("HVD_CHECK", "1", 1);  // before the first collective over messages, which reads it
          hvd::test::MessagesOnly comm(started.split(0, started.rank()));
          const int rank = comm.rank();
          std::vector<float> x(12, static_cast<float>(rank)), y(12);
          const auto refused = [&](hvd::error_kind kind, int culprit, const std::string& says, auto&& call) {
            try {
              call();
            } catch (const hvd::error& e) {
              return require(e.kind() == kind && e.rank() == culprit &&
                                 std::string(e.what()).find(says) != std::string::npos,
                             e.what());
            }
            require(false, "nothing was thrown; expected: " + says);
          };
          const auto mismatch = [&](int culprit, const std::string& says, auto&& call) {
            const std::string where = " on rank " + std::to_string(rank) + " of 3: ranks 0 and " +
                                      std::to_string(culprit) + " are in different calls: ";
            refused(hvd::error::mismatch, culprit, where + says, call);
          };
          mismatch(2, "count 12 on rank 0, 11 on rank 2",
                   [&] { hvd::allreduce(comm, std::span(x).first(rank == 2 ? 11 : 12)); });
          mismatch(1, "reduction sum on rank 0, max on rank 1", [&] {
            if (rank == 1) {
              hvd::allreduce(comm, x, hvd::max);
            } else {
              hvd::allreduce(comm, x);
            }
          });
          mismatch(1, "operation allreduce on rank 0, broadcast on rank 1", [&] {
            if (rank == 1) {
              hvd::broadcast(comm, x);
            } else {
              hvd::allreduce(comm, x);
            }
          });
          mismatch(2, "root 0 on rank 0, 1 on rank 2", [&] { hvd::broadcast(comm, x, rank / 2); });
          mismatch(1, "algorithm or its tunables differ",
                   [&] { hvd::allreduce(comm, x, hvd::sum, hvd::ring{.chunk_bytes = rank == 1 ? 4096U : 8192U}); });
          // One rank's arguments are wrong: it says how, and the others learn whose.
          refused(hvd::error::invalid_argument, 1,
                  rank == 1 ? "x is null" : "rank 1 called allreduce with invalid arguments", [&] {
                    try {
                      hvd::allreduce(comm, rank == 1 ? nullptr : x.data(), 12);
                    } catch (const hvd::error& e) {
                      if (rank != 1) throw;
                      throw hvd::error(e.kind(), "x is null: " + std::string(e.what()), e.rank());
                    }
                  });
          hvd::allreduce(comm, x, y, hvd::sum);
          require(y[11] == 3, "the group is usable after all that");
        }) == 0);
}

TEST_CASE("a call of which a peer has overwritten every byte is an error, and its values name nothing") {
  std::array<hvd::detail::descriptor, 2> calls;
  std::memset(static_cast<void*>(&calls[1]), 0xff, sizeof calls[1]);
  const auto why = hvd::detail::disagreement(calls, "allreduce", "rank 0 of 2");
  REQUIRE(why.has_value());
  CHECK(why->kind() == error_kind::invalid_argument);
  CHECK(std::string(why->what()) ==
        "hvd: allreduce on rank 0 of 2: rank 1 called unknown_v with invalid arguments (see its own error)");
}

}  // namespace
