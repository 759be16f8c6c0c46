// hvd/shared_memory/abort.hpp: the reason for a group's end, as one word in its memory and as a sentence on each rank.
#pragma once

#include <hvd/error.hpp>
#include <hvd/shared_memory/layout.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// The step that a rank waits for; its text completes "waiting for rank k to ...".
enum class phase : unsigned char { join, enter, stage, reduce, consume, finish, send, receive, answer };

constexpr const char* name(phase p) noexcept {
  constexpr const char* names[] = {"join",
                                   "enter the same call",
                                   "stage its data",
                                   "reduce its slice",
                                   "read what was staged",
                                   "finish the call before",
                                   "send",
                                   "receive",
                                   "answer"};
  return names[static_cast<unsigned char>(p)];
}

/// The abort word's value: the kind of the error, the rank at fault, the rank that reports it (-1: none), and the phase
/// that the reporting rank was waiting for. Never 0.
inline std::uint64_t abort_reason(error_kind kind, int culprit, int reporter, phase what = phase::answer) noexcept {
  return (static_cast<std::uint64_t>(kind) + 1) | static_cast<std::uint64_t>(culprit + 1) << 8 |
         static_cast<std::uint64_t>(reporter + 1) << 32 | static_cast<std::uint64_t>(what) << 56;
}

// Another process wrote the word, so each part of it is bounded when it is read: a rank is one of `size`, or -1.
inline error_kind abort_kind(std::uint64_t reason) noexcept { return kind_of((reason & 0xff) - 1); }
inline int abort_rank(std::uint64_t bits, int size) noexcept {
  const int rank = static_cast<int>(bits & 0xffffff) - 1;
  return rank < size ? rank : -1;
}
inline int abort_culprit(std::uint64_t reason, int size) noexcept { return abort_rank(reason >> 8, size); }
inline int abort_reporter(std::uint64_t reason, int size) noexcept { return abort_rank(reason >> 32, size); }
inline phase abort_phase(std::uint64_t reason) noexcept {
  return std::min(static_cast<phase>(reason >> 56), phase::answer);
}
/// True if a second process has claimed a rank of the group. No other failure has this kind in this phase.
inline bool claimed_twice(std::uint64_t reason) noexcept {
  return reason != 0 && abort_kind(reason) == error_kind::mismatch && abort_phase(reason) == phase::join;
}
/// The value of an abort word if its reason is a second claim; otherwise 0.
inline std::uint64_t second_claim(const word& abort) noexcept {
  const std::uint64_t reason = abort.load(std::memory_order_acquire);
  return claimed_twice(reason) ? reason : 0;
}

/// The rank that reads the abort word: its operation, and the peer (-1: none) and the phase it was waiting for.
struct abort_reader {
  std::string_view operation, label;
  int rank, size;
  int waited_for;
  phase what;
  double timeout;  ///< in seconds
};

/// The error text on all ranks when two processes have joined, or want to join, as one rank (-1: unknown rank).
inline std::string two_claims(int rank) {
  return joined({"two processes claim ", rank < 0 ? "one rank" : joined({"rank ", rank}),
                 "; were two jobs started under one name? Each job needs its own HVD_JOB, each rank its own "
                 "HOROVOD_RANK"});
}

[[gnu::noinline]] inline std::string abort_sentence(std::uint64_t reason, const abort_reader& at) {
  const error_kind kind = abort_kind(reason);
  const int culprit = abort_culprit(reason, at.size);
  const int reporter = abort_reporter(reason, at.size);
  const bool blamed = kind == error_kind::timeout && culprit == at.rank && reporter >= 0;
  std::string text = joined({at.operation, " on ", at.label, ": "});
  switch (kind) {
    case error_kind::peer_lost: text += joined({"rank ", culprit, is_lost}); break;
    case error_kind::timeout:
      text +=
          blamed
              ? joined({"rank ", reporter, " waited ", at.timeout, " s for this rank to ", name(abort_phase(reason))})
              : joined({"rank ", culprit, " did not answer within ", at.timeout, " s"});
      text += " (raise HVD_TIMEOUT or failure_policy::timeout if it is only slow)";
      break;
    case error_kind::mismatch:
      // The claimed rank may be one of a larger group, from which this one is split off.
      if (claimed_twice(reason)) return text += two_claims(abort_culprit(reason, max_ranks));
      text += joined({"ranks ", reporter, " and ", culprit,
                      " are in different calls: operation, count, type, op or root differ (run with HVD_CHECK=1 to see "
                      "which)"});
      break;
    case error_kind::no_memory: text += joined({"rank ", culprit, " could not reserve its memory"}); break;
    default: text += joined({"rank ", culprit, " failed in the middle of an operation"}); break;
  }
  if (reporter >= 0 && reporter != at.rank && reporter != culprit && !blamed) {
    text += joined({", as rank ", reporter, " found"});
  }
  if (at.waited_for >= 0) text += joined({"; was waiting for rank ", at.waited_for, " to ", name(at.what)});
  if (kind == error_kind::timeout && at.operation == "send") {
    text += "; a send may wait for its recv: if two ranks both send first, use exchange";
  }
  return text;
}

}  // namespace hvd::inline HVD_ABI::detail
