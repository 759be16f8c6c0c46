// hvd/engine/signature.hpp: an operation's signature, on which ranks agree before it runs, and its form in messages.
#pragma once

#include <hvd/engine/request.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The properties of an operation that must be equal on all ranks that submit its name.
struct signature {
  operation kind = operation::allreduce;
  reduce_op op = reduce_op::sum;
  int root = 0;
  double prescale = 1.0, postscale = 1.0;
  std::vector<dtype> types{};
  std::vector<std::vector<std::size_t>> shapes{};  ///< without dimension 0 if numbers of rows may differ
  memory_kind memory = memory_kind::host;          ///< of all tensors
  dtype wire = dtype::user;                        ///< see request::wire
  bool even = false;                               ///< an allgather or alltoall of one shape: see request::even
  /// Where the tensors lie in memory that a device's library has registered on all ranks: 0 if nowhere, else a hash.
  /// Not compared: ranks may differ, and then it is `places_differ`.
  std::uint64_t place = 0;
  static constexpr std::uint64_t places_differ = 2;  // hashes are odd

  bool operator==(const signature& s) const noexcept {
    return kind == s.kind && op == s.op && root == s.root && prescale == s.prescale && postscale == s.postscale &&
           types == s.types && shapes == s.shapes && memory == s.memory && wire == s.wire && even == s.even;
  }
  /// Takes in another rank's place.
  void meet(std::uint64_t other) noexcept {
    if (place != other) place = places_differ;
  }
  /// True if a rank whose tensors lie at `other` may run by this signature.
  [[nodiscard]] bool covers(std::uint64_t other) const noexcept { return place == other || place == places_differ; }

  /// Elements of tensor `t`: in one row (of dimension 0) if ranks may have different numbers of rows, otherwise in all.
  [[nodiscard]] std::size_t elements(std::size_t t) const noexcept {
    std::size_t all = 1;
    for (const std::size_t n : shapes[t]) all *= n;
    return all;
  }
  /// True if ranks may have different numbers of rows.
  [[nodiscard]] bool rows_differ() const noexcept {
    return (kind == operation::alltoall || kind == operation::allgather) && !even;
  }
  /// Elements of one row of an allgather or alltoall.
  [[nodiscard]] std::size_t row_elements(std::size_t t) const noexcept {
    std::size_t all = 1;
    for (std::size_t d = even ? 1 : 0; d != shapes[t].size(); ++d) all *= shapes[t][d];
    return all;
  }
};

constexpr bool has_op(operation kind) noexcept {
  return kind == operation::allreduce || kind == operation::reduce_scatter;
}

/// The types in which wider ones may travel: see request::wire.
constexpr bool is_wire(dtype type) noexcept {
  return type == dtype::float16 || type == dtype::bfloat16 || type == dtype::float32;
}

/// The number of `rows` rows (of dimension 0) that a rank gets: the first `rows % ranks` ranks get one more.
constexpr std::size_t share_of(std::size_t rows, std::size_t rank, std::size_t ranks) noexcept {
  return rows / ranks + (rank < rows % ranks ? 1 : 0);
}

inline signature signature_of(const request& r) {
  signature s;
  s.kind = r.kind;
  if (has_op(r.kind)) s.op = r.op, s.prescale = r.prescale, s.postscale = r.postscale, s.wire = r.wire;
  if (r.kind == operation::broadcast) s.root = r.root;
  const bool gathers_into = r.kind == operation::allgather && !r.tensors.empty() && r.tensors.front().out != nullptr;
  s.even = r.even || gathers_into;
  s.types.reserve(r.tensors.size());
  s.shapes.reserve(r.tensors.size());
  for (const tensor& t : r.tensors) {
    s.types.push_back(t.type);
    s.shapes.emplace_back(t.shape.begin() + (s.rows_differ() ? 1 : 0), t.shape.end());
  }
  if (!r.tensors.empty()) s.memory = r.tensors.front().memory.kind;
  return s;
}

/// A named signature, the lowest rank that announced it, and how many ranks did.
struct announcement {
  std::string name{};
  signature what{};
  int priority = 0;
  int rank = 0;  ///< the lowest that announced it
  std::uint32_t ranks = 1;
};

// ---- as bytes -------------------------------------------------------------------------------------------------

template <class V>
void put(std::string& to, V value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof value);
}
template <class V>
V take(std::string_view& from) {
  V value{};
  if (from.size() < sizeof value)
    fail(error_kind::mismatch, {"the engine of another rank sent a text that ends early"});
  std::memcpy(&value, from.data(), sizeof value);
  from.remove_prefix(sizeof value);
  return value;
}

inline void put(std::string& to, const announcement& a) {
  put(to, static_cast<std::uint32_t>(a.name.size()));
  to += a.name;
  put(to, a.priority);
  put(to, a.rank);
  put(to, a.ranks);
  put(to, a.what.kind);
  put(to, a.what.op);
  put(to, a.what.root);
  put(to, a.what.prescale);
  put(to, a.what.postscale);
  put(to, a.what.memory);
  put(to, a.what.wire);
  put(to, a.what.place);
  put(to, a.what.even);
  put(to, static_cast<std::uint32_t>(a.what.types.size()));
  for (std::size_t t = 0; t != a.what.types.size(); ++t) {
    put(to, a.what.types[t]);
    put(to, static_cast<std::uint32_t>(a.what.shapes[t].size()));
    for (const std::size_t n : a.what.shapes[t]) put(to, n);
  }
}
/// Refuses a signature that `validate` would have refused on the rank that sent it.
inline void check_received(const signature& s) {
  bool valid = name(s.kind) != "unknown" && name(s.op) != "unknown" && name(s.memory) != "unknown" &&
               (s.wire == dtype::user || is_wire(s.wire));
  valid = valid && (!s.even || s.kind == operation::allgather || s.kind == operation::alltoall);
  const bool data = s.kind != operation::split;  // else the shape is a list of numbers
  for (std::size_t t = 0; data && valid && t != s.types.size(); ++t) {
    valid = s.types[t] < dtype::user && ((s.kind != operation::reduce_scatter && !s.even) || !s.shapes[t].empty());
    std::size_t bytes = 16;  // of the largest element
    for (const std::size_t n : s.shapes[t]) valid = valid && !__builtin_mul_overflow(bytes, n, &bytes);
    valid = valid && bytes <= PTRDIFF_MAX;
  }
  if (!valid) fail(error_kind::mismatch, {"the engine of another rank sent an invalid signature"});
}
inline announcement take_announcement(std::string_view& from) {
  announcement a;
  const auto length = take<std::uint32_t>(from);
  if (from.size() < length) fail(error_kind::mismatch, {"the engine of another rank sent a name that ends early"});
  a.name = from.substr(0, length);
  from.remove_prefix(length);
  a.priority = take<int>(from);
  a.rank = take<int>(from);
  a.ranks = take<std::uint32_t>(from);
  a.what.kind = take<operation>(from);
  a.what.op = take<reduce_op>(from);
  a.what.root = take<int>(from);
  a.what.prescale = take<double>(from);
  a.what.postscale = take<double>(from);
  a.what.memory = take<memory_kind>(from);
  a.what.wire = take<dtype>(from);
  a.what.place = take<std::uint64_t>(from);
  a.what.even = take<unsigned char>(from) != 0;
  for (auto tensors = take<std::uint32_t>(from); tensors != 0; --tensors) {
    a.what.types.push_back(take<dtype>(from));
    auto& shape = a.what.shapes.emplace_back();
    for (auto dimensions = take<std::uint32_t>(from); dimensions != 0; --dimensions) {
      shape.push_back(take<std::size_t>(from));
    }
  }
  check_received(a.what);
  return a;
}

// ---- as text --------------------------------------------------------------------------------------------------

inline std::string shape_text(const std::vector<std::size_t>& shape, bool rows_differ) {
  std::string text = rows_differ ? "[any" : "[";
  for (std::size_t i = 0; i != shape.size(); ++i) text += joined({i == 0 && !rows_differ ? "" : ", ", shape[i]});
  return text + ']';
}

/// Sentence part for the first field in which two signatures differ; both values with their ranks.
inline std::string difference(const announcement& a, const announcement& b) {
  const auto say = [&](std::string_view what, piece left, piece right) {
    return joined({what, " ", left, " on rank ", a.rank, ", ", right, " on rank ", b.rank});
  };
  const signature &x = a.what, &y = b.what;
  if (x.kind != y.kind) return say("operation", name(x.kind), name(y.kind));
  if (x.even != y.even) {
    const auto demand = [](bool even) { return std::string_view(even ? "required" : "not required"); };
    return say("one shape on all ranks, as with memory for the result,", demand(x.even), demand(y.even));
  }
  if (x.types.size() != y.types.size()) return say("number of tensors", x.types.size(), y.types.size());
  for (std::size_t t = 0; t != x.types.size(); ++t) {
    const std::string which = x.types.size() == 1 ? std::string() : joined({" of tensor ", t});
    if (x.types[t] != y.types[t]) return say("element type" + which, name(x.types[t]), name(y.types[t]));
    if (x.shapes[t] != y.shapes[t]) {
      return say("shape" + which, shape_text(x.shapes[t], x.rows_differ()), shape_text(y.shapes[t], y.rows_differ()));
    }
  }
  if (x.memory != y.memory) return say("memory", name(x.memory), name(y.memory));
  if (x.op != y.op) return say("reduction", name(x.op), name(y.op));
  if (x.wire != y.wire) {
    const auto type = [](dtype wire) { return wire == dtype::user ? std::string_view("its own") : name(wire); };
    return say("type on the wire", type(x.wire), type(y.wire));
  }
  if (x.root != y.root) return say("root", x.root, y.root);
  if (x.prescale != y.prescale) return say("prescale factor", x.prescale, y.prescale);
  return say("postscale factor", x.postscale, y.postscale);
}

}  // namespace hvd::inline HVD_ABI::detail
