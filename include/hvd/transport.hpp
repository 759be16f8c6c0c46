// hvd/transport.hpp: the concepts of transports, and of the algorithms that run on them.
//
// Transports and algorithms do not depend on each other. The concepts below describe the abilities of a transport. An
// algorithm is a struct with one call operator for each call (call.hpp) that it supports, constrained by a concept.
// They meet here, in call.hpp and in op.hpp.
#pragma once

#include <hvd/version.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <span>
#include <string_view>

namespace hvd::inline HVD_ABI {

namespace detail {
class peer_memory;
}

/// The color of a rank that takes part in `split` and joins no group. It gets a group of itself alone, because a
/// transport is always one of at least one rank: its size() is 1, and its collectives need no other rank.
inline constexpr int no_group = std::numeric_limits<int>::min();

/// A connected group of ranks; it is the communicator. One thread at a time may use a transport.
template <class T>
concept Transport = requires(T& t) {
  { t.rank() } -> std::convertible_to<int>;
  { t.size() } -> std::convertible_to<int>;
  t.barrier();
};

/// A group of which ranks can make smaller ones, or another one of the same ranks, as an engine and Hierarchical do.
/// `split` is collective: ranks that give the same color form a new group, ordered by key and then by old rank. Ranks
/// that give `no_group` share no group, also not with each other.
template <class T>
concept Splitting = Transport<T> && requires(T& t, int color, int key) {
  { t.split(color, key) } -> std::same_as<T>;
};

namespace detail {

/// True if these two ranks of a split get the same group.
constexpr bool same_group(int color, int rank, int other_color, int other_rank) noexcept {
  return color == other_color && (color != no_group || rank == other_rank);
}
/// A number for the group of `rank`, from 0, the same on its ranks and on no others. `colors` are those of all ranks.
inline int group_number(std::span<const int> colors, int rank) noexcept {
  const int color = colors[static_cast<std::size_t>(rank)];
  // no_group is the lowest color: the numbers of the other groups come after those of ranks without one.
  const auto first = color == no_group ? colors.first(static_cast<std::size_t>(rank)) : colors;
  return static_cast<int>(std::count_if(first.begin(), first.end(), [&](int c) { return c < color || c == no_group; }));
}

}  // namespace detail

/// The kind of memory that a buffer lies in. The numbers travel between ranks: append.
enum class memory_kind : unsigned char { host, device };

/// "host" or "device"; "unknown" for an invalid value.
constexpr std::string_view name(memory_kind kind) noexcept {
  return kind == memory_kind::host ? "host" : kind == memory_kind::device ? "device" : "unknown";
}

/// The kind of memory that a transport's collectives work on. A transport for device memory declares it as a static
/// member `memory`; the host neither reads nor writes its buffers.
template <class T>
inline constexpr memory_kind memory_of = [] {
  if constexpr (requires { memory_kind{T::memory}; }) {
    return T::memory;
  } else {
    return memory_kind::host;
  }
}();

/// The prefix of a transport's collectives in a timeline, such as SHM in SHM_ALLREDUCE. A transport declares it as a
/// static member `timeline_name`; the default is P2P, for messages.
template <class T>
inline constexpr std::string_view timeline_name_of = [] {
  if constexpr (requires { std::string_view{T::timeline_name}; }) {
    return std::string_view{T::timeline_name};
  } else {
    return std::string_view{"P2P"};
  }
}();

/// Ranks can send bytes to each other. Messages between two ranks arrive in order; `send` may block until the receiver
/// takes the message.
template <class T>
concept SendRecv = Transport<T> && requires(T& t, const std::byte* out, std::byte* in, std::size_t bytes, int peer) {
  t.send(out, bytes, peer);
  t.recv(in, bytes, peer);
};

/// SendRecv with memory of the host, on which hvd's algorithms run. `exchange` makes progress in both directions at
/// once; peers may match it with `exchange`, or with `send` and `recv`. If a message has another length than `recv`
/// expects, `recv` throws an `hvd::error` of kind mismatch.
template <class T>
concept PointToPoint = SendRecv<T> && requires(T& t, const std::byte* out, std::byte* in, std::size_t bytes, int peer) {
  t.exchange(out, bytes, peer, in, bytes, peer);
};

/// A rank can probe without waiting. `arrived(peer)` is true if the next message from `peer`, or its beginning, is
/// there, so that `recv` would not wait for the peer to start. `check()` throws the error that a wait would throw if a
/// rank of the group is known to be lost or has failed. It is for occasional calls in waits outside of the transport,
/// and costs about a microsecond per rank. It does nothing if the transport cannot detect lost ranks. It ignores
/// messages from a lost rank that are still to be received: call `arrived` first.
template <class T>
concept Probing = PointToPoint<T> && requires(T& t, int peer) {
  { t.arrived(peer) } -> std::same_as<bool>;
  t.check();
};

/// Ranks can load and store in each other's memory (staging windows, and buffers made by `alloc_shared`). `peers()` is
/// what the algorithms of a ShmTransport or ThreadTransport work on: a transport of your own that is made over one of
/// these, to count or to record calls for example, returns the peers() of that one.
template <class T>
concept PeerMemory = Transport<T> && requires(T& t, std::size_t n) {
  { t.peers() } -> std::convertible_to<detail::peer_memory&>;
  t.template alloc_shared<float>(n);
};

/// The backend has its own version of this collective. `native` runs it. If the backend does not support the call,
/// `native` returns false before anything is sent; the reason is the same on all ranks, such as the type or the
/// operation.
template <class T, class Call>
concept Native = Transport<T> && requires(T& t, const Call& call) {
  { t.native(call) } -> std::same_as<bool>;
};

/// The transport chooses the algorithm for this collective itself: any_transport, which asks the one that it holds.
template <class T, class Call>
concept Choosing = Transport<T> && requires(T& t, const Call& call) { t.run(call); };

/// A transport over which ranks can agree on a new group.
template <class T>
concept Bootstrap = PointToPoint<T>;

/// Algorithm A answers Call on transport T.
template <class A, class T, class Call>
concept Answers = Transport<T> && requires(const A& algorithm, T& t, const Call& call) { algorithm(t, call); };

}  // namespace hvd::inline HVD_ABI
