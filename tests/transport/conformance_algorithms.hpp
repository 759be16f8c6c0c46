// tests/transport/conformance_algorithms.hpp: each algorithm by name, on transports of more than one rank.
#pragma once

#include <hvd/algorithm/adasum.hpp>
#include <hvd/algorithm/bruck.hpp>
#include <hvd/algorithm/double_tree.hpp>

#include <transport/conformance.hpp>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace hvd::test {

/// `direct` with thresholds so low that every number of elements up to 100, and few more, meets all of them;
/// then calls in random order, which change protocol all the time.
template <class Run>
void conformance_direct() {
  std::vector<std::size_t> counts(sanitized ? 30 : 100);
  for (std::size_t n = 0; n != counts.size(); ++n) counts[n] = n;
  for (const std::size_t bytes : std::initializer_list<std::size_t>{1500, 2400, 4608, 6144, 9000}) {
    for (const std::size_t n : {bytes / 12 - 1, bytes / 12, bytes / 12 + 1}) counts.push_back(n);
  }
  for (const int size : Run::sizes) {
    const auto p = static_cast<std::size_t>(size);
    const direct low{.one_shot_bytes = 168, .chunk_bytes = p * 192, .mapped_bytes = 600};
    // One shot as far as it reaches; two shots wherever possible, with a line for each rank; nothing but mapped memory.
    const direct one_shot{.one_shot_bytes = 1 << 30, .chunk_bytes = 192, .mapped_bytes = 1 << 30};
    const direct two_shots{.one_shot_bytes = 1, .chunk_bytes = p * 64, .mapped_bytes = 1 << 30};
    const direct mapped{.one_shot_bytes = 1, .mapped_bytes = 1};
    for (const direct& how : {low, one_shot, two_shots, mapped}) {
      const std::string called = name(how);
      CAPTURE(called);
      with_checkers<Run, affine, compose>(counts.back(),
                                          [&](auto& check, auto& comm) {
                                            sweep(check, counts, comm.rank(), sizeof(affine), false);
                                            run_random(check, comm.rank(), 21, sanitized ? 300 : 1500, 150);
                                          },
                                          how, {size});
    }
  }
}

/// An algorithm over messages: `chunk_bytes` of it small, so that there are many chunks.
template <class Run, class T, class Op, class How>
void conformance_over_messages(const How& how) {
  const std::string called = name(how);
  CAPTURE(called);
  for (const int size : Run::sizes) {
    const auto counts = counts_around({56, 1024, 4096, 70000}, size, sizeof(T));
    with_checkers<Run, T, Op>(counts.back(),
                              [&](auto& check, auto& comm) {
                                // One mode for all ranks: an alltoall in place exchanges in another order.
                                unsigned turn = 0;
                                const auto p = static_cast<unsigned>(comm.size());
                                for (const std::size_t n : counts) {
                                  for (const bool in_place : {false, true}) {
                                    const variant v{placements[turn % std::size(placements)], in_place,
                                                    static_cast<int>(turn / 2 % p), turn % 7};
                                    check.all(n, v);
                                    if constexpr (std::is_same_v<How, bruck>) {  // refuses alltoall_v
                                      check.allgather(uneven(check.size(), n, turn / 4), false, v);
                                    } else {
                                      check.all_uneven(n, turn / 4, v);
                                    }
                                    ++turn;
                                  }
                                }
                              },
                              how, {size});
  }
}

/// Floats whose sum depends on the order: the same bits on all ranks, in both runs, and, where `one_order`
/// says so, by all the variants of an algorithm.
template <class Run, class T, class How>
void conformance_same_bits(const std::vector<How>& variants, bool one_order) {
  const std::vector<std::size_t> counts{1, 9, 333, 5001, 70001};
  for (const int size : Run::sizes) {
    CAPTURE(size);
    const left_behind hashes(2 * variants.size() * counts.size());
    const auto at = [&](std::size_t run, std::size_t k, std::size_t c) -> std::uint64_t& {
      return hashes[(run * variants.size() + k) * counts.size() + c];
    };
    for (const std::size_t run : {0U, 1U}) {
      Run::run(size, [&](auto& comm) {
        auto shared = comm.template alloc_shared<T>(counts.back());
        std::vector<T> own(counts.back());
        for (std::size_t k = 0; k != variants.size(); ++k) {
          for (std::size_t c = 0; c != counts.size(); ++c) {
            const std::size_t n = counts[c];
            for (const bool in_shared : {false, true}) {
              const std::span<T> data(in_shared ? shared.data() : own.data(), n);
              for (std::size_t i = 0; i != n; ++i) data[i] = order_sensitive<T>(i, comm.rank());
              allreduce(comm, data, sum, variants[k]);
              const std::uint64_t mine = hash_of_bits(data.data(), data.size_bytes());
              std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
              allgather(comm, std::span(&mine, 1), all);
              for (const std::uint64_t other : all) {
                require(other == mine, [&] {
                  return "ranks got different bits from " + name(variants[k]) + " of " + std::to_string(n) +
                         " elements";
                });
              }
              if (comm.rank() != 0) continue;
              if (in_shared) require(mine == at(run, k, c), "private and shared memory give different bits");
              at(run, k, c) = mine;
            }
          }
        }
      });
    }
    for (std::size_t k = 0; k != variants.size(); ++k) {
      for (std::size_t c = 0; c != counts.size(); ++c) {
        CAPTURE(k);
        CAPTURE(counts[c]);
        CHECK(at(0, k, c) == at(1, k, c));
        if (one_order) CHECK(at(0, k, c) == at(0, 0, c));
      }
    }
  }
}

/// direct adds in rank order by every protocol, and rounds 16-bit floats once.
template <class Run>
void conformance_bits_of_direct() {
  const std::vector<direct> protocols{
      direct{.one_shot_bytes = 1 << 30, .mapped_bytes = 1 << 30}, direct{.mapped_bytes = 1},
      direct{.one_shot_bytes = 1, .chunk_bytes = 4096, .mapped_bytes = 1 << 30}, direct{}};
  conformance_same_bits<Run, float>(protocols, true);
  conformance_same_bits<Run, half>(protocols, true);
}
/// adasum has no sum that a checker could know, but its results are exact where vectors are orthogonal or equal.
template <class Run>
void conformance_adasum() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    const auto counts = counts_around({56, 1024, 4096, 70000, 300000}, size, sizeof(float));
    Run::run(size, [&](auto& comm) {
      const auto p = static_cast<std::size_t>(comm.size()), rank = static_cast<std::size_t>(comm.rank());
      for (const std::size_t n : counts) {
        const std::size_t tensors[] = {n / 3, n - n / 3};
        for (const adasum& how : {adasum{}, adasum{.tensors = tensors}}) {
          std::vector<float> in(n), out(n), all(n), same(n);
          for (std::size_t i = 0; i != n; ++i) {
            const auto value = static_cast<float>((i * 7 + 3) % 251) - 120.0F;
            in[i] = i % p == rank ? value : 0.0F;
            all[i] = same[i] = value;
          }
          const auto say = [&](const char* what) {
            return std::string("adasum of ") + what + " vectors of " + std::to_string(n) +
                   " elements is wrong on rank " + std::to_string(rank) + " of " + std::to_string(p);
          };
          const std::vector<float> before = in;
          allreduce(comm, in, out, sum, how);
          require(out == all && in == before, [&] { return say("orthogonal"); });
          allreduce(comm, same, sum, how);
          require(same == all, [&] { return say("equal"); });
        }
      }
    });
  }
}

/// Each algorithm over messages.
template <class Run, class... How>
void conformance_alignment_over_messages(const How&... more) {
  conformance_alignment<Run>(ring{.chunk_bytes = 1000}, tree{.chunk_bytes = 1000}, recursive_doubling{},
                             halving_doubling{}, double_tree{.chunk_bytes = 1000}, more...);
}
/// The same, and each protocol of direct.
template <class Run>
void conformance_alignment_in_common_memory() {
  conformance_alignment_over_messages<Run>(direct{}, direct{.one_shot_bytes = 1 << 30, .mapped_bytes = 1 << 30},
                                           direct{.one_shot_bytes = 1, .mapped_bytes = 1 << 30},
                                           direct{.one_shot_bytes = 1, .mapped_bytes = 1, .streaming_bytes = 1});
}

template <class Run>
void conformance_bits_over_messages() {
  conformance_same_bits<Run, float>(std::vector<ring>{{}, {.chunk_bytes = 1024}}, false);
  conformance_same_bits<Run, float>(std::vector<tree>{{}, {.chunk_bytes = 1024}}, false);
  conformance_same_bits<Run, float>(std::vector<recursive_doubling>(1), false);
  conformance_same_bits<Run, float>(std::vector<halving_doubling>(1), false);
  conformance_same_bits<Run, float>(std::vector<double_tree>{{}, {.chunk_bytes = 1024}}, false);
  conformance_same_bits<Run, float>(std::vector<adasum>(1), false);
}

}  // namespace hvd::test
