// hvd/transport.hpp: the concepts of transports, and of the algorithms that run on them.
//
// Transports and algorithms do not depend on each other. A transport states by the concepts below what it can do; an
// algorithm is a struct with one call operator for each call (call.hpp) that it can answer, constrained by a concept.
// They meet here, in call.hpp and in op.hpp.
#pragma once

#include <hvd/version.hpp>

#include <concepts>
#include <cstddef>
#include <string_view>

namespace hvd::inline HVD_ABI {

namespace detail {
class peer_memory;
}

/// A connected group of ranks; it is the communicator. One thread at a time may use a transport. `split` is
/// collective: ranks that give the same color form a new group, ordered by key and then by old rank.
template <class T>
concept Transport = requires(T& t, int color, int key) {
  { t.rank() } -> std::convertible_to<int>;
  { t.size() } -> std::convertible_to<int>;
  t.barrier();
  { t.split(color, key) };
};

/// Where a buffer lies. The numbers travel: append.
enum class memory_kind : unsigned char { host, device };

/// "host" or "device"; "unknown" for a value that is none.
constexpr std::string_view name(memory_kind kind) noexcept {
  return kind == memory_kind::host ? "host" : kind == memory_kind::device ? "device" : "unknown";
}

/// Where the buffers of the calls on a transport lie. One whose collectives work on the memory of a device has a static
/// member `memory` that says so; its buffers are not read or written on the host.
template <class T>
inline constexpr memory_kind memory_of = [] {
  if constexpr (requires { memory_kind{T::memory}; }) {
    return T::memory;
  } else {
    return memory_kind::host;
  }
}();

/// What the names of collectives on a transport begin with in a timeline, as in SHM_ALLREDUCE. A transport has it as a
/// static member `timeline_name`; without one it is P2P, for messages.
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

/// As SendRecv, from memory of the host; what hvd's own algorithms run on. `exchange` makes progress in both directions
/// at once, whatever the peers match it with: `exchange`, or `send` and `recv`. A message of another length than `recv`
/// expects is an `hvd::error` of kind mismatch.
template <class T>
concept PointToPoint = SendRecv<T> && requires(T& t, const std::byte* out, std::byte* in, std::size_t bytes, int peer) {
  t.exchange(out, bytes, peer, in, bytes, peer);
};

/// A rank can probe without waiting. `arrived(peer)` is true if the next message from this rank is there, or its
/// beginning, so that `recv` would not wait for the peer to start. `check()` throws what a wait would throw if a rank
/// of the group is known to be gone or has given up. It costs about a microsecond a rank, for occasional calls in waits
/// outside of the transport; where nothing can be known it does nothing. It ignores messages from the rank that is gone
/// which are still to be received: call `arrived` first.
template <class T>
concept Probing = PointToPoint<T> && requires(T& t, int peer) {
  { t.arrived(peer) } -> std::same_as<bool>;
  t.check();
};

/// Ranks can load and store in each other's memory (staging windows, and buffers made by `alloc_shared`).
template <class T>
concept PeerMemory = Transport<T> && requires(T& t, std::size_t n) {
  { t.peers() } -> std::same_as<detail::peer_memory&>;
  t.template alloc_shared<float>(n);
};

/// The backend has this collective of its own. `native` runs it, or returns false before anything is sent, where the
/// backend cannot do it: for a reason that is the same on all ranks, such as the type or the operation.
template <class T, class Call>
concept Native = Transport<T> && requires(T& t, const Call& call) {
  { t.native(call) } -> std::same_as<bool>;
};

/// A transport over which ranks can agree on a new group.
template <class T>
concept Bootstrap = PointToPoint<T>;

/// Algorithm A answers Call on transport T.
template <class A, class T, class Call>
concept Answers = Transport<T> && requires(const A& algorithm, T& t, const Call& call) { algorithm(t, call); };

}  // namespace hvd::inline HVD_ABI
