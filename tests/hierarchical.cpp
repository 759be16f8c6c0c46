#include <hvd/hierarchical.hpp>

#include <transport/conformance_algorithms.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace hvd::test;

namespace {

/// Which host a rank is on, in the groups of these tests.
struct halves {
  static int host(int rank, int size) { return rank < (size + 1) / 2 ? 0 : 1; }
};
struct pairs {
  static int host(int rank, int /*size*/) { return rank / 2; }
};
struct uneven_hosts {  // 1, then 3, then the rest
  static int host(int rank, int /*size*/) { return rank < 1 ? 0 : rank < 4 ? 1 : 2; }
};
struct round_robin {
  static int host(int rank, int /*size*/) { return rank % 2; }
};
struct one_each {
  static int host(int rank, int /*size*/) { return rank; }
};

/// Two levels of one transport, with chunks so small that most messages have several.
template <class On, class Layout>
struct on_levels {
  using part = typename On::transport;
  using transport = hvd::Hierarchical<part, part>;
  static constexpr std::initializer_list<int> sizes = On::sizes;
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& opts = long_deadline()) {
    On::run(
        size,
        [&](auto& world) {
          part local = world.split(Layout::host(world.rank(), world.size()), world.rank());
          transport comm(world.split(0, world.rank()), std::move(local), {.leader_bytes = 100, .chunk_bytes = 3000});
          f(comm);
        },
        opts);
  }
};

/// A transport whose ranks have no common memory, and that counts the bytes that its ranks send: those of all groups
/// that come from one are counted together.
class counted_messages {
 public:
  counted_messages(hvd::ThreadTransport over, std::uint64_t& bytes) : over_(std::move(over)), bytes_(&bytes) {}

  [[nodiscard]] int rank() const { return over_.rank(); }
  [[nodiscard]] int size() const { return over_.size(); }
  void barrier() { over_.barrier(); }
  [[nodiscard]] counted_messages split(int color, int key) { return {over_.split(color, key), *bytes_}; }
  void send(const std::byte* data, std::size_t bytes, int peer) {
    *bytes_ += bytes;
    over_.send(data, bytes, peer);
  }
  void recv(std::byte* data, std::size_t bytes, int peer) { over_.recv(data, bytes, peer); }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    *bytes_ += out_bytes;
    over_.exchange(out, out_bytes, to, in, in_bytes, from);
  }

 private:
  hvd::ThreadTransport over_;
  std::uint64_t* bytes_;
};
static_assert(hvd::PointToPoint<counted_messages> && !hvd::PeerMemory<counted_messages>);

/// The bytes that the ranks of each host send to other hosts while all run f(comm).
template <class F>
std::vector<std::uint64_t> crossing(int size, int ranks_per_host, const F& f) {
  std::vector<std::uint64_t> sent(static_cast<std::size_t>(size));
  hvd::thread_run(size, [&](hvd::ThreadTransport& world) {
    const int rank = world.rank();
    std::uint64_t& mine = sent[static_cast<std::size_t>(rank)];
    hvd::Hierarchical<hvd::ThreadTransport, counted_messages> comm(
        counted_messages(world.split(0, rank), mine), world.split(rank / ranks_per_host, rank),
        {.leader_bytes = 100, .chunk_bytes = std::size_t{1} << 24});
    mine = 0;
    f(comm);
  });
  std::vector<std::uint64_t> hosts(static_cast<std::size_t>(size / ranks_per_host));
  for (int r = 0; r != size; ++r)
    hosts[static_cast<std::size_t>(r / ranks_per_host)] += sent[static_cast<std::size_t>(r)];
  return hosts;
}

template <class Run>
void conformance() {
  conformance_collectives<Run, std::int32_t, hvd::sum_t>({2, 3, 5, 8}, false);
  conformance_roots<Run>();
  conformance_uneven_blocks<Run>();
  conformance_random_order<Run>();
  conformance_split<Run>();
  conformance_messages<Run>();
  conformance_probing<Run>();
  conformance_barrier<Run>();
}

}  // namespace

TEST_CASE("two levels, halves: every collective") { conformance<on_levels<on_threads, halves>>(); }
TEST_CASE("two levels, pairs: every collective") { conformance<on_levels<on_threads, pairs>>(); }
TEST_CASE("two levels, uneven hosts: every collective") { conformance<on_levels<on_threads, uneven_hosts>>(); }
TEST_CASE("two levels, ranks dealt out: every collective") { conformance<on_levels<on_threads, round_robin>>(); }
TEST_CASE("two levels, a rank each: every collective") { conformance<on_levels<on_threads, one_each>>(); }
TEST_CASE("two levels of processes: every collective") { conformance<on_levels<on_processes, halves>>(); }
TEST_CASE("two levels: several MiB") {
  conformance_large<on_levels<on_threads, halves>>({3, 8});
  conformance_large<on_levels<on_processes, pairs>>({5});
}
TEST_CASE("two levels: an operation that does not commute") {
  conformance_collectives<on_levels<on_threads, halves>, affine, compose>({3, 8}, false);
  conformance_collectives<on_levels<on_threads, round_robin>, affine, compose>({5}, false);
}
TEST_CASE("two levels: an algorithm by name runs on messages") {
  conformance_over_messages<on_levels<on_threads, pairs>, std::int32_t, hvd::sum_t>(hvd::ring{.chunk_bytes = 1000});
}

TEST_CASE("two levels: a limit for one call, on both") { conformance_limit_is_over<on_levels<on_threads, halves>>(); }

TEST_CASE("average and scale factors count once") {
  hvd::thread_run(5, [](hvd::ThreadTransport& world) {
    hvd::Hierarchical<hvd::ThreadTransport, hvd::ThreadTransport> comm(world.split(0, world.rank()),
                                                                       world.split(world.rank() / 2, world.rank()));
    for (const std::size_t n : {1, 100000}) {
      std::vector<float> x(n, static_cast<float>(world.rank()));
      hvd::allreduce(comm, x, hvd::scaled(hvd::average, 8.0, 0.25));
      require(x.front() == 4.0F && x.back() == 4.0F, "8 * (0 + 1 + 2 + 3 + 4) / 5 / 4");
    }
  });
}

TEST_CASE("an error of one level names the rank at fault as all ranks count it") {
  hvd::thread_run(4, [](hvd::ThreadTransport& world) {
    hvd::Hierarchical<hvd::ThreadTransport, hvd::ThreadTransport> comm(world.split(0, world.rank()),
                                                                       world.split(world.rank() / 2, world.rank()));
    if (world.rank() == 3) return;
    try {
      std::vector<float> x(10);
      while (true) hvd::allreduce(comm, x);
    } catch (const hvd::error& e) {
      if (world.rank() != 2) return;  // they wait for rank 2, which leaves because of rank 3
      require(e.kind() == hvd::error::peer_lost && e.rank() == 3, e.what());
      require(std::string(e.what()).find("on rank 0 of 2") != std::string::npos, e.what());
      require(std::string(e.what()).ends_with("(of all ranks: rank 3)"), e.what());
    }
  });
}

TEST_CASE("what crosses between hosts") {
  // Divisible by all numbers of ranks here, and so long that every lane's slice goes around a ring.
  constexpr std::size_t n = 1200000;
  constexpr std::uint64_t S = n * sizeof(float);
  for (const auto& [size, per_host] : {std::pair{4, 2}, {6, 2}, {6, 3}, {8, 4}}) {
    CAPTURE(size);
    const auto hosts = static_cast<std::uint64_t>(size / per_host);
    const auto p = static_cast<std::size_t>(size);
    for (const std::uint64_t bytes : crossing(size, per_host, [](auto& comm) {
           std::vector<float> x(n);
           hvd::allreduce(comm, x);
         })) {
      CHECK(bytes == 2 * S * (hosts - 1) / hosts);
    }
    for (const std::uint64_t bytes : crossing(size, per_host, [&](auto& comm) {
           std::vector<float> x(n), block(n / p);
           hvd::reduce_scatter(comm, x, block);
         })) {
      CHECK(bytes == S * (hosts - 1) / hosts);
    }
    for (const std::uint64_t bytes : crossing(size, per_host, [&](auto& comm) {
           std::vector<float> x(n), block(n / p);
           hvd::allgather(comm, block, x);
         })) {
      CHECK(bytes == S * (hosts - 1) / hosts);
    }
    // The root's host is the first: the others send what they have, once; and it sends once to each (or to the next).
    const auto reduced = crossing(size, per_host, [](auto& comm) {
      std::vector<float> x(n), sum(comm.rank() == 0 ? n : 0);
      hvd::reduce(comm, x, sum, hvd::sum, 0);
    });
    CHECK(reduced.front() == 0);
    const auto sent = crossing(size, per_host, [](auto& comm) {
      std::vector<float> x(n);
      hvd::broadcast(comm, x, 0);
    });
    std::uint64_t all = 0;
    for (const std::uint64_t bytes : sent) all += bytes;
    CHECK(all == S * (hosts - 1));
  }
}

TEST_CASE("on one host alltoall stays in shared memory, and short vectors go through one rank of each host") {
  const auto sent = [](int per_host, const auto& f) {
    std::uint64_t all = 0;
    for (const std::uint64_t bytes : crossing(4, per_host, f)) all += bytes;
    return all;
  };
  const auto exchange = [](auto& comm) {
    std::vector<float> in(400), out(400);
    hvd::alltoall(comm, in, out);
  };
  CHECK(sent(4, exchange) == 0);
  CHECK(sent(2, exchange) == 4 * 3 * 400);  // each rank's blocks for the other three, by the transport between hosts
  const auto reduced = [](auto& comm) {
    float x = 1, sum = 0;
    hvd::reduce(comm, &x, &sum, 1, hvd::sum, 1);
    require(comm.rank() != 1 || sum == 4, "a wrong sum");
  };
  CHECK(sent(2, reduced) == sizeof(float));
  CHECK(sent(4, reduced) == 0);
}

TEST_CASE("a host that cannot make its group is an error on all ranks") {
  using transport = hvd::Hierarchical<hvd::ShmTransport, hvd::ShmTransport>;
  CHECK(hvd::fork_run(3, [](hvd::ShmTransport& world) {
          transport::options opts;
          // Nobody shares, and rank 1 finds no memory for itself.
          if (world.rank() == 1) opts.sharing.memory.directory = "/nowhere";
          if (world.rank() == 2) opts.sharing.memory.directory = "/tmp";
          try {
            transport::over(world.split(0, world.rank()), opts);
          } catch (const hvd::error& e) {
            const bool mine = world.rank() == 1;
            require((e.kind() == hvd::error::aborted) != mine, e.what());
            require(mine || (e.rank() == 1 && std::string(e.what()).find("rank 1 could not join") != std::string::npos),
                    e.what());
            return;
          }
          require(false, "nothing was thrown");
        }) == 0);
}

TEST_CASE("which ranks share memory is found out") {
  using transport = hvd::Hierarchical<hvd::ShmTransport, hvd::ShmTransport>;
  CHECK(hvd::fork_run(4, [](hvd::ShmTransport& world) {
          const int rank = world.rank();
          transport comm = transport::over(world.split(0, rank));
          require(comm.hosts() == 1 && comm.lanes() == 4 && comm.local().size() == 4, "one host");
          require(comm.host_of() == std::vector<int>(4), "another host");

          // Ranks 2 and 3 look elsewhere, as in another container: nobody shares.
          transport::options opts;
          if (rank >= 2) opts.sharing.memory.directory = "/tmp";
          transport apart = transport::over(world.split(0, rank), opts);
          require(apart.hosts() == 4 && apart.lanes() == 1 && apart.local().size() == 1, "a host each");
          require(apart.host_of() == std::vector<int>{0, 1, 2, 3}, "a host that is another rank's");
          for (transport* t : {&comm, &apart}) {
            std::vector<int> x(5000, rank);
            hvd::allreduce(*t, x);
            require(x.front() == 6 && x.back() == 6, "a sum over levels");
          }
        }) == 0);
}

TEST_CASE("other threads see for which rank of the whole group a rank waits, on whatever level") {
  using transport = hvd::Hierarchical<hvd::ThreadTransport, hvd::ThreadTransport>;
  std::array<std::unique_ptr<transport>, 4> kept;
  std::array<std::atomic<transport*>, 4> ranks{};
  std::atomic<int> step{0};
  // Waits till rank r waits for `peer`.
  const auto seen = [&](std::size_t r, int peer) {
    for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
         ranks[r] == nullptr || ranks[r].load()->waiting_for() != peer;) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  };
  auto all = std::async(std::launch::async, [&] {
    hvd::thread_run(
        4,
        [&](hvd::ThreadTransport& world) {
          const int r = world.rank();
          hvd::ThreadTransport local = world.split(r % 2, r);
          const auto i = static_cast<std::size_t>(r);
          const hvd::hierarchy_sizes sizes{.leader_bytes = 100, .chunk_bytes = 3000};
          kept[i] = std::make_unique<transport>(world.split(0, r), std::move(local), sizes);
          transport& comm = *kept[i];
          ranks[i] = &comm;
          const auto reached = [&](int n) {
            while (step < n) std::this_thread::yield();
          };
          std::byte b{};
          if (r == 3) {  // in the whole group
            comm.recv(&b, 1, 2);
          } else if (r == 2) {  // in that of the host
            comm.local().recv(&b, 1, 0);
          }
          reached(1);
          if (r == 2) comm.send(&b, 1, 3);
          if (r == 0) comm.local().send(&b, 1, 1);
          // The ranks of host 1 are ranks 1 and 3; host 0 does not come.
          std::vector<float> x(1000, 1.0F);
          if (r % 2 == 0) reached(2);
          hvd::allreduce(comm, x);
          require(x[0] == 4 && x[999] == 4, "a wrong sum");
        },
        long_deadline());
  });
  CHECK(seen(3, 2));
  CHECK(seen(2, 0));
  step = 1;
  CHECK(seen(1, 0));
  CHECK(seen(3, 2));
  step = 2;
  all.get();
  CHECK(seen(3, -1));
}

TEST_CASE("a lost rank is found without a wait on each level") {
  using transport = hvd::Hierarchical<hvd::ThreadTransport, hvd::ThreadTransport>;
  for (const int lost : {1, 2}) {  // of the same host as rank 0, and of its lane
    CAPTURE(lost);
    std::string said;
    std::atomic<int> ready{0};
    hvd::thread_run(4, [&](hvd::ThreadTransport& world) {
      const int r = world.rank();
      hvd::ThreadTransport local = world.split(r / 2, r);
      transport comm(world.split(0, r), std::move(local));
      comm.check();
      ++ready;
      while (ready != 4) std::this_thread::yield();
      if (r == lost) return;
      try {
        for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
             std::chrono::steady_clock::now() < until;) {
          comm.check();
        }
      } catch (const hvd::error& e) {
        require(e.kind() == hvd::error_kind::peer_lost, e.what());
        if (r == 0) said = e.what();
      }
    });
    CHECK(said.starts_with("hvd: check on rank 0 of "));
  }
}

TEST_CASE("ranks of different jobs are refused, on all ranks") {
  CHECK(hvd::fork_run(3, [](hvd::ShmTransport& world) {
          ::setenv("HVD_JOB", world.rank() == 2 ? "other" : "this", 1);
          try {
            hvd::Hierarchical<hvd::ShmTransport, hvd::ShmTransport>::over(world.split(0, world.rank()));
          } catch (const hvd::error& e) {
            require(e.kind() == hvd::error::mismatch && e.rank() == 2, e.what());
            require(std::string(e.what()).find("ranks 0 and 2 are of different jobs (HVD_JOB, HVD_LAUNCH)") !=
                        std::string::npos,
                    e.what());
            return;
          }
          require(false, "nothing was thrown");
        }) == 0);
}

TEST_CASE("a local group with ranks of another world is refused") {
  hvd::thread_run(3, [](hvd::ThreadTransport& all) {
    auto world = all.split(all.rank() < 2 ? 0 : 1, all.rank());
    try {
      hvd::Hierarchical<hvd::ThreadTransport, hvd::ThreadTransport>(std::move(world), all.split(0, all.rank()));
      require(false, "nothing was thrown");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::invalid_argument, e.what());
      require(std::string(e.what()).find("has 3 ranks, but") != std::string::npos, e.what());
    }
  });
}

TEST_CASE("hosts are numbered by their lowest rank") {
  using places = std::vector<hvd::detail::host_place>;
  const hvd::detail::host_map even(places{{0, 0}, {0, 1}, {2, 0}, {2, 1}});
  CHECK(even.hosts() == 2);
  CHECK(even.lanes == 2);
  CHECK(even.consecutive);
  const hvd::detail::host_map dealt(places{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}});
  CHECK(dealt.hosts() == 2);
  CHECK(dealt.host_of == std::vector<int>{0, 1, 0, 1, 0});
  CHECK(dealt.local_of == std::vector<int>{0, 0, 1, 1, 2});
  CHECK(dealt.ranks == std::vector<int>{3, 2});
  CHECK(dealt.lanes == 2);
  CHECK(!dealt.consecutive);
  const hvd::detail::host_map backwards(places{{0, 1}, {0, 0}});
  CHECK(!backwards.consecutive);
}

TEST_CASE("what ranks say of their hosts is refused where it does not fit together") {
  using places = std::vector<hvd::detail::host_place>;
  const auto complaint = [](const places& all) -> std::string {
    try {
      hvd::detail::check_places(all, 0);
    } catch (const hvd::error& e) {
      return e.kind() == hvd::error::invalid_argument ? e.what() : "another kind";
    }
    return {};
  };
  CHECK(complaint({{0, 0, 2}, {0, 1, 2}, {2, 0, 1}}).empty());
  CHECK(complaint({{1, 1, 2}, {1, 0, 2}}).empty());
  CHECK(complaint({{0, 0, 2}, {0, 1, 1}}).find("group of rank 1 has 1 ranks, but 2 ranks name") != std::string::npos);
  for (const places& wrong :
       {places{{5, 0, 1}}, places{{-1, 0, 1}}, places{{1, 0, 1}, {0, 0, 1}}, places{{0, 0, 1}, {0x7fffffff, 0, 1}}}) {
    CHECK(complaint(wrong).find(" as its lowest, which is in another group; allowed: local groups") !=
          std::string::npos);
  }
  for (const places& wrong : {places{{0, 0, 2}, {0, 0, 2}}, places{{0, 1, 1}}, places{{0, -1, 1}}}) {
    CHECK(complaint(wrong).find(" does not have a local rank ") != std::string::npos);
  }
}
