// hvd/engine/device.hpp: what an engine needs of a device whose memory its tensors are in.
#pragma once

#include <hvd/engine/plan.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI {

/// An engine with this device has none: it takes tensors on the host alone.
struct no_device {
  static constexpr int index() noexcept { return -1; }
  static constexpr no_device split(int /*color*/, int /*key*/) noexcept { return {}; }
};

/// Of allgather and alltoall: how many rows of tensor t come from rank r is rows[t][r]. Tensors are counted through all
/// works of a batch.
using received_rows = std::vector<std::vector<std::size_t>>;

/// A device of this rank, connected with the devices of the other ranks of a group: a stream and a communicator, for
/// instance. The thread that drives an engine calls its functions, one at a time. Only `split` may wait for another
/// rank: a device that needs several steps (a communicator that is not blocking) takes the next one in `poll`. Ranks in
/// errors are those of the group.
///
/// An error of `start` or `poll` fails one batch, and the others go on. So it must be an error of this batch on all
/// ranks; if it is more than that, or of this rank alone, `check` must throw as well.
template <class D>
concept Device = std::movable<D> && requires(D& d, std::span<const detail::work> works, const received_rows& rows,
                                             typename D::pending& batch, int color, int key) {
  // Which device of this rank it is. Tensors on others are refused.
  { d.index() } -> std::convertible_to<int>;
  // Queues a batch: works that are `fusable`, the same in the same order on all ranks. It begins behind the `ready`
  // event of each tensor. The works and signatures are valid during the call, requests and completions until the batch
  // has ended. It fills in the `results` of the completions, which have an entry for each tensor, as the executor of
  // the host does: type, shape, received_splits, and memory where the request gives none. A work without a request is
  // that of a rank that has joined: it gives zeros.
  { d.start(works, rows) } -> std::same_as<typename D::pending>;
  // Whether the batch is done: its outputs are written, the device uses none of its memory any more, and no other rank
  // needs this one for it. Throws hvd::error if the batch has failed. It is called often, for the batch that was
  // started first.
  { d.poll(batch) } -> std::same_as<bool>;
  // Throws hvd::error if the group is lost, with the rank at fault where that is known; also when the device has waited
  // for other ranks for longer than it allows. It is called often.
  d.check();
  // Ends all work on this rank at once; called at most once, after any error. Then the device uses no memory of any
  // batch, and nothing but its destructor is called.
  { d.abort() } noexcept;
  // A group of some ranks; collective, as that of a transport. No batch is pending then.
  { d.split(color, key) } -> std::same_as<D>;
};

namespace detail {

/// Whether a device has a static member `converts` that is true: its tensors may travel as another type.
template <class D>
inline constexpr bool device_converts = [] {
  if constexpr (requires { bool{D::converts}; }) return D::converts;
  return false;
}();

}  // namespace detail

/// What an engine that is made with a D runs on: D itself, or a Device that a header makes of a transport, as
/// hvd/gpu.hpp does of NcclTransport.
template <class D>
struct device_for {
  using type = D;
};

}  // namespace hvd::inline HVD_ABI
