// hvd/shared_memory/agree.hpp: ranks with common memory compare their calls before data moves.
#pragma once

#include <hvd/call.hpp>
#include <hvd/shared_memory/peer_memory.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The description of a call that ranks compare; fills the first line of a mailbox exactly.
struct descriptor {
  std::uint64_t count = 0;  ///< elements
  std::uint32_t op = 0;     ///< reduction::op, 0 if there is none
  operation kind{};
  dtype type = dtype::user;
  // No bool: a peer may write any byte.
  std::uint8_t invalid = 0;  ///< not 0: this rank's arguments are wrong, so no rank goes on
  std::uint8_t flags = 0;    ///< with_counts, staged and of_list; need not be equal
  std::int16_t root = -1;
  std::uint16_t algorithm = 0;  ///< hash of its name and tunables
  std::uint32_t in_block = 0;   ///< shared blocks that the buffers lie in, 0 if they are private
  std::uint32_t out_block = 0;
  std::uint32_t element_bytes = 0;
  std::uint64_t in_offset = 0;  ///< offsets of the buffers in those blocks
  std::uint64_t out_offset = 0;
  std::uint64_t details = 0;  ///< hash of other values that must be equal: scale factors, counts of blocks

  static constexpr std::uint8_t with_counts = 1;  ///< the function has counts, such as allgather_v
  static constexpr std::uint8_t staged = 2;       ///< this rank has staged its first chunk already
  static constexpr std::uint8_t of_list = 4;      ///< `details` is of a list of tensors, too
  [[nodiscard]] bool has(std::uint8_t flag) const noexcept { return (flags & flag) != 0; }

  /// A hash of 16 bits: different calls have the same hash in one case of 65,536.
  [[nodiscard]] std::uint16_t signature() const noexcept {
    const std::uint64_t call = static_cast<std::uint64_t>(op) << 32 | static_cast<std::uint64_t>(kind) << 24 |
                               static_cast<std::uint64_t>(type) << 16 | static_cast<std::uint16_t>(root);
    std::uint64_t h = (count + 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
    h = (h ^ h >> 29 ^ call ^ details) * 0x94d049bb133111ebULL;
    return static_cast<std::uint16_t>(h >> 48);
  }
};
static_assert(sizeof(descriptor) == mailbox::first_line && max_ranks <= INT16_MAX);

inline std::uint64_t mix(std::uint64_t h, std::uint64_t value) noexcept {
  return std::rotl((h ^ value) * 0x9e3779b97f4a7c15ULL, 29);
}

inline std::uint64_t details_of(const reduction& op) noexcept {
  if (!op.scales() && op.commutative) return 0;
  std::uint64_t h = mix(op.commutative ? 1 : 2, std::bit_cast<std::uint64_t>(op.scale.pre));
  h = mix(h, std::bit_cast<std::uint64_t>(op.scale.post));
  return mix(h, op.scale.divisor);
}
inline std::uint64_t details_of(const partition& blocks) noexcept {
  if (blocks.uniform()) return 0;
  std::uint64_t h = 1;
  for (int r = 0; r != blocks.ranks(); ++r) h = mix(h, blocks.count(r));
  return h;
}

template <class Call>
descriptor describe(const Call& c) noexcept {
  const extent whole = extent_of(c);
  descriptor d;
  d.kind = Call::kind;
  d.count = whole.count;
  d.element_bytes = static_cast<std::uint32_t>(whole.element_bytes);
  if constexpr (Reducing<Call>) {
    d.op = c.op.op;
    d.type = c.op.type;
    d.details = details_of(c.op);
  }
  if constexpr (Rooted<Call>) d.root = static_cast<std::int16_t>(c.root);
  if constexpr (requires { c.list; }) {
    if (c.list != 0) {
      d.details = mix(d.details, c.list);
      d.flags |= descriptor::of_list;
    }
  }
  if (whole.blocks == nullptr) {
    if (!whole.uniform) d.details = 1;
  } else {
    d.details = Reducing<Call> ? mix(d.details, details_of(*whole.blocks)) : details_of(*whole.blocks);
  }
  return d;
}

/// A sentence about the first field in which two calls differ; empty if they do not differ.
inline std::string difference(const descriptor& a, int rank_a, const descriptor& b, int rank_b) {
  const auto say = [&](std::string_view what, piece left, piece right) {
    return joined({what, " ", left, " on rank ", rank_a, ", ", right, " on rank ", rank_b});
  };
  if (a.kind != b.kind) return say("operation", name(a.kind), name(b.kind));
  if (a.type != b.type) return say("element type", name(a.type), name(b.type));
  if (a.element_bytes != b.element_bytes) {
    return say("element size", joined({a.element_bytes, " bytes"}), joined({b.element_bytes, " bytes"}));
  }
  if (a.op != b.op) return say("reduction", op_name(a.op), op_name(b.op));
  if (a.details != b.details && (a.has(descriptor::of_list) || b.has(descriptor::of_list)) && a.root == b.root) {
    return joined({"number, lengths or order of the tensors in a list, or scale factors, differ between ranks ", rank_a,
                   " and ", rank_b});
  }
  if (a.count != b.count) return say(a.kind == operation::broadcast ? "bytes" : "count", a.count, b.count);
  if (a.root != b.root) return say("root", a.root, b.root);
  if (a.details != b.details) {
    return say("scale factors or block counts", joined({"(hash) ", a.details}), joined({"(hash) ", b.details}));
  }
  if (a.algorithm != b.algorithm) {
    return say("algorithm or its tunables differ:", joined({"(hash) ", a.algorithm}), joined({"(hash) ", b.algorithm}));
  }
  return {};
}

/// The error for all ranks if their calls, passed in rank order, are invalid or differ; otherwise nothing.
inline std::optional<error> disagreement(std::span<const descriptor> all, std::string_view operation,
                                         std::string_view label) {
  for (std::size_t q = 0; q != all.size(); ++q) {
    if (all[q].invalid == 0) continue;
    return error(
        error_kind::invalid_argument,
        joined({operation, " on ", label, ": rank ", q, " called ", name(all[q].kind),
                all[q].has(descriptor::with_counts) ? "_v" : "", " with invalid arguments (see its own error)"}),
        static_cast<int>(q));
  }
  for (std::size_t q = 1; q < all.size(); ++q) {
    const std::string what = difference(all[0], 0, all[q], static_cast<int>(q));
    if (what.empty()) continue;
    return error(error_kind::mismatch,
                 joined({operation, " on ", label, ": ranks 0 and ", q, " are in different calls: ", what}),
                 static_cast<int>(q));
  }
  return std::nullopt;
}

/// All ranks learn each other's calls. Returns them in rank order (valid until the next use of scratch memory).
/// Passing it also proves that every rank has finished all earlier operations. If the calls differ, every rank
/// throws the same error and the group stays usable. `meanwhile()` is called before this rank waits for the others.
/// Cost: one line written, one read from every peer.
template <class Meanwhile>
std::span<const descriptor> agree(peer_memory& m, const descriptor& own, peer_memory::scope& scope,
                                  const Meanwhile& meanwhile) {
  constexpr std::uint16_t signature = 0xa9ee;
  auto* const all = reinterpret_cast<descriptor*>(m.scratch(static_cast<std::size_t>(m.size()) * sizeof(descriptor)));
  m.begin(signature);
  m.publish(reinterpret_cast<const std::byte*>(&own), sizeof own);
  meanwhile();
  for (int q = 0; q != m.size(); ++q) {
    std::memcpy(all + q, q == m.rank() ? reinterpret_cast<const std::byte*>(&own) : m.read(q), sizeof own);
  }
  m.mark_all_read();
  m.end();
  if (const auto why = disagreement({all, static_cast<std::size_t>(m.size())}, m.operation_name(), m.label())) {
    scope.leave();
    throw error(*why);
  }
  return {all, static_cast<std::size_t>(m.size())};
}

inline std::span<const descriptor> agree(peer_memory& m, const descriptor& own, peer_memory::scope& scope) {
  return agree(m, own, scope, [] {});
}

/// One small value from every rank, in rank order.
template <class T>
std::vector<T> share(peer_memory& m, const T& own, operation kind) {
  static_assert(sizeof(T) <= mailbox::capacity);
  std::vector<T> all(static_cast<std::size_t>(m.size()));
  descriptor d;
  d.kind = kind;
  d.element_bytes = sizeof(T);
  m.begin(d.signature());
  m.publish(reinterpret_cast<const std::byte*>(&own), sizeof own);
  for (int q = 0; q != m.size(); ++q) {
    T& to = all[static_cast<std::size_t>(q)];
    if (q == m.rank()) {
      to = own;
    } else {
      std::memcpy(&to, m.read(q), sizeof to);
    }
  }
  m.mark_all_read();
  m.end();
  return all;
}

/// An exchange without payload, inside an operation: no rank leaves before all have entered.
inline void meet(peer_memory& m, const descriptor& d) {
  m.begin(d.signature());
  m.publish(nullptr, 0);
  for (int q = 0; q != m.size(); ++q) {
    if (q != m.rank()) m.read(q);
  }
  m.mark_all_read();
  m.end();
}

/// Returns when every rank of the group has called it. Cost: one line written, one read from every peer.
inline void barrier(peer_memory& m) {
  peer_memory::scope scope(m, "barrier");
  descriptor d;
  d.kind = operation::barrier;
  if (m.checks()) {
    agree(m, d, scope);  // is a barrier itself
  } else {
    meet(m, d);
  }
  scope.leave();
}

/// The members of this rank's new group: old ranks of the same color (see no_group), ordered by key and then by rank.
struct split_plan {
  std::vector<int> members;
  int rank = 0;             ///< in the new group
  std::uint64_t nonce = 0;  ///< drawn by the new rank 0
};

inline split_plan plan_split(peer_memory& m, int color, int key, std::uint64_t nonce) {
  struct wish {
    int color, key;
    std::uint64_t nonce;
  };
  peer_memory::scope scope(m, "split");
  if (m.checks()) {
    descriptor d;
    d.kind = operation::split;
    agree(m, d, scope);
  }
  const std::vector<wish> all = share(m, wish{color, key, nonce}, operation::split);
  scope.leave();
  const auto key_of = [&](int r) { return all[static_cast<std::size_t>(r)].key; };
  split_plan plan;
  for (int q = 0; q != m.size(); ++q) {
    if (same_group(color, m.rank(), all[static_cast<std::size_t>(q)].color, q)) plan.members.push_back(q);
  }
  std::stable_sort(plan.members.begin(), plan.members.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
  plan.rank = static_cast<int>(std::find(plan.members.begin(), plan.members.end(), m.rank()) - plan.members.begin());
  plan.nonce = all[static_cast<std::size_t>(plan.members.front())].nonce;
  return plan;
}

}  // namespace hvd::inline HVD_ABI::detail
