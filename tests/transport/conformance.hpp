// tests/transport/conformance.hpp: what every transport must get right, by the algorithm of its choice.
#pragma once

#include <support/collective_checker.hpp>
#include <support/skip.hpp>
#include <transport/launchers.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

namespace hvd::test {

/// 0, 1, 7, 8, 9 elements, and those just below, at and above each number of bytes, for vectors and blocks.
inline std::vector<std::size_t> counts_around(const std::vector<std::size_t>& thresholds, int size,
                                              std::size_t element_bytes) {
  std::set<std::size_t> counts{0, 1, 7, 8, 9};
  for (const std::size_t bytes : thresholds) {
    for (const std::size_t n : {bytes / element_bytes, bytes / element_bytes / static_cast<std::size_t>(size)}) {
      for (const std::size_t near : {n - 1, n, n + 1}) {
        if (n != 0) counts.insert(near);
      }
    }
  }
  return {counts.begin(), counts.end()};
}
/// Where `direct` changes its protocol, in bytes: a line, the derived end of lines in reductions, the end of
/// lines in copies, what lines hold at all, the begin of mapped buffers, a chunk, and three of them (all
/// cells in use).
inline std::vector<std::size_t> thresholds_of_direct(int size) {
  const auto p = static_cast<std::size_t>(size);
  return {56, 64, 112, 6144 * p / (p * p - 2 * p + 2), 4096, 8960, 16384, 65536, 3 * 65536};
}
inline std::vector<std::size_t> small_thresholds() { return {56, 64, 112, 4096}; }

/// Collectives at all `counts`, each in place and out of place. Roots, placements and shifts take turns;
/// `thorough` runs all placements where buffers of alloc_shared memory are used in place.
template <class Checker>
void sweep(Checker& check, const std::vector<std::size_t>& counts, int rank, std::size_t element_bytes, bool thorough) {
  unsigned turn = 0;
  const auto p = static_cast<unsigned>(check.size());
  for (const std::size_t n : counts) {
    const bool all_placements = thorough && n * p * element_bytes >= 16384;
    for (unsigned where = 0; where != (all_placements ? std::size(placements) : 1U); ++where) {
      for (const unsigned in_place : {0U, 1U, 2U}) {
        // The third: on every other rank only, which is each rank's own business.
        variant v{placements[(all_placements ? where : turn) % std::size(placements)],
                  in_place == 1 || (in_place == 2 && rank % 2 == 0), static_cast<int>(turn / 3 % p), turn % 7};
        if (in_place == 2 && turn / 3 % 3 != 0) {
          ++turn;
          continue;
        }
        check.all(n, v);
        if (in_place != 2 && n % 3 != 1) check.all_uneven(n, turn / 4, v);
        ++turn;
      }
    }
  }
}

/// One table and one set of ranks for each number of ranks; f(checker, comm).
template <class Run, class T, class Op, class How = automatic<>, class F>
void with_checkers(std::size_t largest_block, const F& f, const How& how = {},
                   std::initializer_list<int> sizes = Run::sizes, const sharing_options& opts = long_deadline()) {
  for (const int size : sizes) {
    CAPTURE(size);
    const tables<T, Op> table(size, uneven_total(size, largest_block));
    Run::run(
        size,
        [&](auto& comm) {
          buffers memory(comm, (table.count() + 8) * sizeof(T));
          checker<std::remove_reference_t<decltype(comm)>, T, Op, How> check(comm, memory, table, how);
          f(check, comm);
        },
        opts);
  }
}

template <class Run, class T, class Op>
void conformance_collectives(std::initializer_list<int> sizes, bool all_thresholds) {
  for (const int size : sizes) {
    const auto thresholds = all_thresholds ? thresholds_of_direct(size) : small_thresholds();
    const auto counts = counts_around(thresholds, size, sizeof(T));
    with_checkers<Run, T, Op>(
        counts.back(), [&](auto& check, auto& comm) { sweep(check, counts, comm.rank(), sizeof(T), !sanitized); },
        automatic<>{}, {size});
  }
}

/// Every root, on counts of each protocol.
template <class Run>
void conformance_roots() {
  with_checkers<Run, std::int32_t, sum_t>(20000, [](auto& check, auto&) {
    for (const std::size_t n : std::initializer_list<std::size_t>{0, 1, 14, 15, 1100, 20000}) {
      for (int root = 0; root != check.size(); ++root) {
        for (const bool in_place : {false, true}) {
          for (const placement where : {placement::apart, placement::shared}) {
            const variant v{where, in_place, root, n == 0 ? 1U : 0U};
            check.reduce(n, v);
            check.broadcast(n, v);
            const std::vector<std::size_t> blocks(static_cast<std::size_t>(check.size()), n / 2);
            check.gather(blocks, true, v);
            check.scatter(blocks, true, v);
          }
        }
      }
    }
  });
}

/// Blocks of different sizes, with empty ones at both ends and in the middle, and some that end with a line.
template <class Run>
void conformance_uneven_blocks() {
  with_checkers<Run, std::int8_t, sum_t>(9000, [](auto& check, auto& comm) {
    unsigned turn = 0;
    for (const std::size_t scale :
         std::initializer_list<std::size_t>{0, 1, 2, 55, 56, 57, 112, 560, 1000, 2240, 4096, 8960, 9000}) {
      for (unsigned pattern = 0; pattern != 5; ++pattern, ++turn) {
        const auto p = static_cast<unsigned>(comm.size());
        const variant v{placements[turn % std::size(placements)], turn % 2 == 0, static_cast<int>(turn % p), turn % 3};
        check.all_uneven(scale, pattern, v);
      }
    }
  });
}

/// Reductions of elements whose alignment is more than that of a payload, in private or shared memory of one rank.
template <class T, class C, class How>
void check_aligned(C& comm, std::byte* memory, std::size_t n, const How& how) {
  const auto p = static_cast<std::size_t>(comm.size());
  T* const in = reinterpret_cast<T*>(memory);
  T* const out = in + n * p;
  for (std::size_t i = 0; i != n * p; ++i) in[i] = input<T>(add_aligned{}, i, comm.rank(), comm.size());
  const reduction r = make_reduction<T>(add_aligned{}, comm.size());
  const partition blocks(comm.size(), n, sizeof(T));
  auto* const from = reinterpret_cast<std::byte*>(in);
  auto* const to = reinterpret_cast<std::byte*>(out);
  const auto right = [&](const T* got, std::size_t first, int ranks, const char* what) {
    for (std::size_t i = 0; i != n; ++i) {
      require(got[i] == expected<T>(add_aligned{}, first + i, ranks), [&] {
        std::string text =
            detail::joined({what, " of ", n, " elements aligned to ", alignof(T), ": element ", i, " is wrong"});
        if constexpr (requires { name(how); }) text += ", by " + name(how);
        return text;
      });
    }
  };
  if constexpr (Answers<How, C, reduce_scatter_call>) {
    detail::run(comm, reduce_scatter_call{from, to, blocks, r}, how);
    right(out, n * static_cast<std::size_t>(comm.rank()), comm.size(), "reduce_scatter");
  }
  if constexpr (Answers<How, C, scan_call>) {
    detail::run(comm, scan_call{from, to, n, r}, how);
    right(out, 0, comm.rank() + 1, "scan");
  }
  if constexpr (Answers<How, C, exscan_call>) {
    detail::run(comm, exscan_call{from, to, n, r}, how);
    if (comm.rank() > 0) right(out, 0, comm.rank(), "exscan");
  }
  if constexpr (Answers<How, C, reduce_call>) {
    detail::run(comm, reduce_call{from, to, n, r, 1}, how);
    if (comm.rank() == 1) right(out, 0, comm.size(), "reduce");
  }
  if constexpr (Answers<How, C, allreduce_call>) {
    detail::run(comm, allreduce_call{from, to, n, r}, how);
    right(out, 0, comm.size(), "allreduce");
    detail::run(comm, allreduce_call{from, from, n, r}, how);
    right(in, 0, comm.size(), "allreduce in place");
  }
}
/// Elements aligned to 16 bytes and more, wherever an algorithm puts them: by each of `hows`.
template <class Run, class... How>
void conformance_alignment(const How&... hows) {
  for (const int size : {2, 3}) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      constexpr std::size_t most = 100;
      const auto p = static_cast<std::size_t>(size);
      std::vector<aligned<256>> own(most * (p + 1));
      auto shared = comm.template alloc_shared<aligned<256>>(own.size());
      const auto each = [&]<class T>(std::type_identity<T>) {
        for (const std::size_t n : {std::size_t{1}, std::size_t{7}, most}) {
          for (aligned<256>* const memory : {own.data(), shared.data()}) {
            (check_aligned<T>(comm, reinterpret_cast<std::byte*>(memory), n, hows), ...);
          }
        }
      };
      each(std::type_identity<aligned<16>>());
      each(std::type_identity<aligned<32>>());
      each(std::type_identity<aligned<64>>());
      each(std::type_identity<aligned<256>>());
    });
  }
}

/// Several MiB and a count that nothing divides; beyond the last-level cache where `streaming`.
template <class Run>
void conformance_large(std::initializer_list<int> sizes) {
  const std::size_t block = sanitized ? 75011 : 300007;
  with_checkers<Run, std::int32_t, sum_t>(
      block,
      [&](auto& check, auto&) {
        const std::size_t whole = std::min<std::size_t>(1250003, check.capacity());
        for (const placement where : {placement::apart, placement::shared}) {
          variant v{where, false, check.size() - 1, 3};
          check.all(whole / static_cast<std::size_t>(check.size()), v);
          check.all_uneven(block, 0, v);
          check.allreduce(whole / 4 * 3, v);
          v.in_place = true;
          check.all(block / 6 * 5, v);
        }
      },
      automatic<>{}, sizes);
}
template <class Run>
void conformance_streaming() {
  const std::size_t bytes = std::max<std::size_t>(host().l3, std::size_t{1} << 24) + 4097;
  if (bytes > std::size_t{100} << 20) {
    return skip("the last-level cache has " + std::to_string(host().l3) +
                " bytes: output beyond it takes too long here");
  }
  with_checkers<Run, std::int8_t, sum_t>(bytes / 5,
                                         [&](auto& check, auto&) {
                                           check.allreduce(bytes, {.root = 0, .shift = 5});
                                           check.reduce(bytes, {.root = 1, .shift = 3});
                                         },
                                         automatic<>{}, {2});
}

/// Collectives of all kinds, one after the other with nothing in between, in an order that a seed decides;
/// some ranks are late now and then. What one leaves undone, the next ones meet.
template <class Checker>
void run_random(Checker& check, int rank, unsigned seed, int operations, std::size_t largest) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto p = static_cast<std::size_t>(check.size());
  for (int k = 0; k != operations; ++k) {
    const std::size_t bits = below(static_cast<std::size_t>(std::bit_width(largest)));
    const std::size_t n = std::min(largest, below(std::size_t{2} << bits));
    const variant v{placements[below(5)], below(2) == 0, static_cast<int>(below(p)), static_cast<unsigned>(below(8))};
    const auto pattern = static_cast<unsigned>(below(5));
    const std::size_t late = below(40), delay = below(300), kind = below(17);
    if (late == 0 && delay % p == static_cast<std::size_t>(rank)) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
    }
    const std::vector<std::size_t> equal(p, n / p);
    const std::vector<std::size_t> counts = uneven(check.size(), n / p, pattern);
    switch (kind) {
      case 0: check.barrier(); break;
      case 1:
      case 2: check.allreduce(n, v); break;
      case 3:
      case 4: check.reduce(n, v); break;
      case 5:
      case 6: check.broadcast(n, v); break;
      case 7: check.reduce_scatter(equal, true, v); break;
      case 8: check.reduce_scatter(counts, false, v); break;
      case 9: check.allgather(equal, true, v); break;
      case 10: check.allgather(counts, false, v); break;
      case 11: check.alltoall(n / p, v); break;
      case 12: check.alltoall_v(n / p, pattern, v); break;
      case 13: check.scan(n, v); break;
      case 14: check.exscan(n, v); break;
      case 15: check.gather(pattern % 2 == 0 ? equal : counts, pattern % 2 == 0, v); break;
      default: check.scatter(pattern % 2 == 0 ? equal : counts, pattern % 2 == 0, v);
    }
  }
}
template <class Run>
void conformance_random_order() {
  for (const unsigned seed : {1U, 2U, 3U, 4U, 5U}) {
    CAPTURE(seed);
    const std::size_t largest = seed == 1 ? 20 : seed == 2 ? 30000 : 500;
    with_checkers<Run, std::int32_t, sum_t>(largest, [&](auto& check, auto& comm) {
      run_random(check, comm.rank(), seed, sanitized ? 400 : 2000, largest);
    });
  }
}

/// Groups of every kind run collectives while the group that they come from goes on.
template <class Run>
void conformance_split() {
  std::vector<tables<std::int32_t, sum_t>> table;
  for (int size = 1; size <= *std::max_element(Run::sizes.begin(), Run::sizes.end()); ++size) {
    table.emplace_back(size, uneven_total(size, 2000));
  }
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      using transport = std::remove_reference_t<decltype(comm)>;
      using checks = checker<transport, std::int32_t, sum_t>;
      const auto run_in = [&](transport& c, unsigned seed) {
        buffers memory(c, uneven_total(c.size(), 2000) * 4 + 64);
        checks check(c, memory, table[static_cast<std::size_t>(c.size() - 1)]);
        run_random(check, c.rank(), seed, 40, 2000);
        // Backwards, a group of three on two hosts begins with a rank that is alone on its host.
        for (int root = 0; root != c.size(); ++root) check.reduce(600, {placement::apart, false, root, 0});
      };
      const int rank = comm.rank(), p = comm.size();

      transport parity = comm.split(rank % 2, -rank);
      require(parity.size() == (p + 1 - rank % 2) / 2, "a group of every other rank has another size");
      require(parity.rank() == (p - 1 - rank) / 2, "keys order a group");
      run_in(parity, 10);
      run_in(comm, 11);

      transport same = comm.split(7, 0);
      require(same.size() == p && same.rank() == rank, "equal keys keep the old order");
      transport reversed = comm.split(-1, p - rank);
      require(reversed.size() == p && reversed.rank() == p - 1 - rank, "a group of all, backwards");
      transport alone = comm.split(rank, 0);
      require(alone.size() == 1 && alone.rank() == 0, "a group of one each");
      const bool in_none = rank % 2 == 0;  // these share no group, although their colors are equal
      transport odd = comm.split(in_none ? no_group : std::numeric_limits<int>::max(), -rank);
      require(odd.size() == (in_none ? 1 : p / 2), "a group of the odd ranks, and none for the others");
      require(odd.rank() == (in_none ? 0 : (p - 1 - rank) / 2), "the odd ranks, backwards");
      run_in(odd, 18);
      transport none = comm.split(no_group, p - rank);
      require(none.size() == 1 && none.rank() == 0, "no group for any rank");
      none.barrier();
      run_in(reversed, 12);
      run_in(alone, 13);
      run_in(same, 14);

      transport nested = parity.split(parity.rank() / 2, 0);
      require(nested.size() == std::min(2, parity.size() - parity.rank() / 2 * 2), "a group of a group");
      run_in(nested, 15);
      run_in(parity, 16);
      run_in(comm, 17);
    });
  }
}

/// A limit for one call: the results are those without one, and afterwards the timeout is the old one.
template <class Run>
void conformance_limit() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [](auto& comm) {
      using transport = std::remove_reference_t<decltype(comm)>;
      const auto sums = [&](const auto& how) {
        std::int32_t x = comm.rank() + 1;
        allreduce(comm, &x, 1, sum, how);
        require(x == comm.size() * (comm.size() + 1) / 2, "another sum within a limit");
      };
      const auto both = [&] {
        sums(within(std::chrono::minutes(5)));
        if constexpr (PointToPoint<transport>) sums(within(std::chrono::minutes(5), ring{}));
      };
      if constexpr (detail::HasTimeout<transport>) {
        const auto before = comm.timeout();
        both();
        require(comm.timeout() == before, "another timeout after the call");
      } else {
        both();
      }
    });
  }
}
/// A rank that does not come is a timeout after the limit, on ranks that are threads.
template <class Run>
void conformance_limit_is_over() {
  std::atomic<int> over{0};
  Run::run(3, [&](auto& comm) {
    std::string said = "nothing";
    const auto start = std::chrono::steady_clock::now();
    if (comm.rank() != 2) {
      try {
        std::vector<float> x(1000);
        allreduce(comm, x, sum, within(std::chrono::milliseconds(200)));
      } catch (const error& e) {
        said = std::string(name(e.kind())) + ": " + e.what();
      }
      ++over;
    }
    const auto took = std::chrono::steady_clock::now() - start;
    while (over != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // or others would lose this rank
    if (comm.rank() == 2) return;
    require(said.starts_with("timeout: ") && said.find(" 0.2 s") != std::string::npos, said);
    require(took < std::chrono::seconds(25), "the timeout without a limit is 30 s");
  });
  conformance_limit<Run>();  // a new group
}

/// Messages of lengths around a slot, in order, to one peer, around the ring, and to itself.
template <class Run>
void conformance_messages() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [](auto& comm) {
      const int rank = comm.rank(), p = comm.size();
      const std::size_t slot = 32768;
      const std::vector<std::size_t> lengths{
          0,        1,    63,       64,       65,           8191,     8192,         8193,   slot - 64,
          slot - 1, slot, slot + 1, 2 * slot, 2 * slot + 1, 3 * slot, 5 * slot - 1, 1000003};
      const auto message = [](int from, std::size_t n) {
        std::vector<std::uint8_t> bytes(n);
        for (std::size_t i = 0; i < n; i += 8) {
          const std::uint64_t eight = draw(i, from) ^ n * 0x0101010101010101U;
          std::memcpy(&bytes[i], &eight, std::min<std::size_t>(8, n - i));
        }
        return bytes;
      };
      const auto expect = [&](const std::vector<std::uint8_t>& got, int from) {
        require(got == message(from, got.size()), [&] {
          return "rank " + std::to_string(rank) + " of " + std::to_string(p) + " received another message of " +
                 std::to_string(got.size()) + " bytes than rank " + std::to_string(from) + " sent";
        });
      };
      const auto raw = [](auto& bytes) { return reinterpret_cast<std::byte*>(bytes.data()); };

      // Even ranks send first; the last of an odd number has no partner.
      if (const int peer = rank ^ 1; peer < p) {
        for (const bool sends : {rank % 2 == 0, rank % 2 != 0}) {
          for (const std::size_t n : lengths) {
            if (sends) {
              send(comm, message(rank, n), peer);
            } else {
              std::vector<std::uint8_t> got(n);
              recv(comm, got, peer);
              expect(got, peer);
            }
          }
        }
      }
      // Both directions at once, also of different lengths, with every distance.
      for (int distance = 0; distance != p; ++distance) {
        const int to = (rank + distance) % p, from = (rank + p - distance) % p;
        for (std::size_t k = 0; k != lengths.size(); ++k) {
          const auto length = [&](int r) { return lengths[(k + static_cast<std::size_t>(r)) % lengths.size()]; };
          auto out = message(rank, length(rank));
          std::vector<std::uint8_t> got(length(from));
          comm.exchange(raw(out), out.size(), to, raw(got), got.size(), from);
          expect(got, from);
        }
      }
      // What fits into the slots needs no receiver yet; collectives in between use other memory, unless they are
      // messages themselves.
      for (int to = 0; to != p; ++to) send(comm, message(rank + 10 * to, 700), to);
      if (PeerMemory<std::remove_reference_t<decltype(comm)>> || p == 1) {
        std::int32_t one = 1;
        allreduce(comm, &one, 1);
        require(one == p, "an allreduce between send and recv");
      }
      for (int from = p; from-- != 0;) {
        std::vector<std::uint8_t> got(700);
        recv(comm, got, from);
        expect(got, from + 10 * rank);
      }
    });
  }
}

/// Waits till a message from `peer` is there, or its beginning.
template <class T>
void await_arrival(T& comm, int peer) {
  if constexpr (requires { comm.await_arrival({&peer, 1}); }) comm.await_arrival({&peer, 1});
  for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30); !comm.arrived(peer);) {
    require(std::chrono::steady_clock::now() < until, "a message does not come");
    comm.check();
    std::this_thread::yield();
  }
}

/// Whether a message is there is known without a wait: from each peer alone, until it is received, in order.
template <class Run>
void conformance_probing() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [](auto& comm) {
      const int rank = comm.rank(), p = comm.size();
      const std::vector<std::size_t> lengths{7, 0, 300007};
      for (int from = 0; from != p; ++from) {
        // The next sender may have received from others already; after the last round there may be messages of a
        // barrier.
        const bool quiet = rank != from + 1 && from + 1 != p;
        require(!comm.arrived(rank), "a message to itself that was never sent");
        if (rank == from) {
          for (int to = 0; to != p; ++to) {
            std::vector<char> ready(1);
            if (to != from) recv(comm, ready, to);  // it has seen nothing until now
          }
          for (int to = 0; to != p; ++to) {
            // Of a long message only the beginning is there before it is received, and none to itself may be long.
            for (std::size_t k = 0; k != (to == from ? 2 : 3); ++k) send(comm, std::vector<char>(lengths[k], 'a'), to);
          }
        } else {
          require(!comm.arrived(from), "a message before it was sent");
          send(comm, std::vector<char>(1), from);
        }
        for (std::size_t k = 0; k != (rank == from ? 2 : 3); ++k) {
          await_arrival(comm, from);
          for (int q = 0; q != p; ++q) {
            require(comm.arrived(q) == (q == from) || !quiet, "a message from somebody else");
          }
          std::vector<char> got(lengths[k]);
          recv(comm, got, from);
          require(got == std::vector<char>(lengths[k], 'a'), "another message");
        }
        require(!comm.arrived(from) || !quiet, "a message after the last");
        comm.check();
      }
      for (const int peer : {-1, p}) {
        try {
          static_cast<void>(comm.arrived(peer));
          require(false, "a rank that is not there was taken");
        } catch (const error& e) {
          require(e.kind() == error_kind::invalid_argument, e.what());
        }
      }
      barrier(comm);  // nobody leaves who may still be checked
    });
  }
}

/// Two groups of the same ranks, each used by a thread of its own at the same time: all collectives, and new groups.
template <class Run>
void conformance_two_threads(std::initializer_list<int> sizes = Run::sizes) {
  for (const int size : sizes) {
    CAPTURE(size);
    const tables<std::int32_t, sum_t> table(size, uneven_total(size, 2000));
    Run::run(size, [&](auto& comm) {
      using transport = std::remove_reference_t<decltype(comm)>;
      const auto work = [&](transport& group, unsigned seed) {
        for (int round = 0; round != 3; ++round) {
          buffers memory(group, uneven_total(size, 2000) * 4 + 64);
          checker<transport, std::int32_t, sum_t> check(group, memory, table);
          run_random(check, group.rank(), seed, sanitized ? 20 : 60, 2000);
          transport reversed = group.split(3, -group.rank());
          std::vector<int> passed(1);
          if (reversed.rank() != 0) recv(reversed, passed, reversed.rank() - 1);
          if (++passed[0]; reversed.rank() + 1 != size) send(reversed, passed, reversed.rank() + 1);
          require(passed[0] == reversed.rank() + 1, "another message");
          barrier(group);
        }
      };
      transport one = comm.split(0, comm.rank()), other = comm.split(0, -comm.rank());
      std::exception_ptr problem;
      std::thread second([&] {
        try {
          work(other, 21);
        } catch (...) {
          problem = std::current_exception();
        }
      });
      try {
        work(one, 22);
      } catch (...) {
        problem = std::current_exception();
      }
      second.join();
      if (problem) std::rethrow_exception(problem);
      barrier(comm);
    });
  }
}

/// Nobody leaves a barrier before everybody has come.
template <class Run>
void conformance_barrier() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    const left_behind arrivals(16 * static_cast<std::size_t>(size));
    Run::run(size, [&](auto& comm) {
      const auto p = static_cast<std::size_t>(comm.size());
      const auto at = [&](std::size_t r) { return std::atomic_ref(arrivals[r * 16]); };
      for (std::uint64_t round = 1; round != 200; ++round) {
        if (round % 16 == 0 && round / 16 % p == static_cast<std::size_t>(comm.rank())) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        at(static_cast<std::size_t>(comm.rank())).store(round, std::memory_order_relaxed);
        barrier(comm);
        for (std::size_t r = 0; r != p; ++r) {
          require(at(r).load(std::memory_order_relaxed) >= round, "a barrier did not wait for everybody");
        }
      }
    });
  }
}

/// The same with calls compared between ranks, and with the least staging memory.
template <class Run>
void conformance_options() {
  sharing_options checked = long_deadline();
  checked.failure.check = true;
  sharing_options tight = long_deadline();
  tight.memory.staging_bytes = std::size_t{64} << 10;
  for (const sharing_options& opts : {checked, tight}) {
    const auto counts = counts_around({56, 2048, 16384}, 3, sizeof(std::int32_t));
    with_checkers<Run, std::int32_t, sum_t>(
        counts.back(),
        [&](auto& check, auto& comm) {
          sweep(check, counts, comm.rank(), sizeof(std::int32_t), false);
          run_random(check, comm.rank(), 5, 200, 5000);
        },
        automatic<>{}, {2, 3}, opts);
  }
}

}  // namespace hvd::test
