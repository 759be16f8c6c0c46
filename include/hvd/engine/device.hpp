// hvd/engine/device.hpp: the interface between an engine and a device that holds tensors.
#pragma once

#include <hvd/engine/plan.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI {

/// For an engine without a device: it takes only tensors on the host.
struct no_device {};

/// A function that gives the largest of all ranks' numbers; waits for all ranks.
using largest_number = std::function<std::uint64_t(std::uint64_t)>;

/// For allgather and alltoall: rows[t][r] is the number of rows of tensor t that come from rank r. Tensors are numbered
/// through all works of a batch.
using received_rows = std::vector<std::vector<std::size_t>>;

/// A device of this rank, connected with the devices of the other ranks of a group: for example a stream and a
/// communicator. The thread that drives an engine calls its functions, one at a time. Only `split` may wait for another
/// rank; a device that needs several steps (a non-blocking communicator) takes the next step in `poll`. Ranks in errors
/// are those of the group.
///
/// An error of `start` or `poll` fails one batch, and the others go on. So it must be an error of this batch alone, on
/// all ranks. For any other error, `check` must throw as well.
///
/// hvd/engine/erased_device.hpp describes the functions that a device may have besides.
template <class D>
concept Device = std::movable<D> && requires(D& d, std::span<const detail::work> works, const received_rows& rows,
                                             typename D::pending& batch, int color, int key) {
  // The index of the device on this rank. Tensors on other devices are refused.
  { d.index() } -> std::convertible_to<int>;
  // Queues a batch: works that are `fusable`, the same in the same order on all ranks. The batch begins behind the
  // `ready` event of each tensor. The works and signatures are valid during the call, requests and completions until
  // the batch has ended. Fills in the `results` of the completions, which have an entry for each tensor, like the
  // executor of the host: type, shape, received_splits, and memory if the request has none. A work without a request
  // belongs to a joined rank and contributes zeros.
  { d.start(works, rows) } -> std::same_as<typename D::pending>;
  // True if the batch is done: its outputs are written, the device no longer uses its memory, and no other rank needs
  // this rank for it. Throws hvd::error if the batch has failed. Called often, for the batch that was started first.
  { d.poll(batch) } -> std::same_as<bool>;
  // Throws hvd::error if the group is lost, with the rank at fault if it is known; also if the device has waited too
  // long for other ranks. Called often.
  d.check();
  // Ends all work on this rank at once; called at most once, after any error. Then only its destructor is called. True
  // if the device uses no memory of any batch any more; otherwise the engine never frees that memory.
  { d.abort() } noexcept -> std::same_as<bool>;
  // A group of some ranks; collective, like `split` of a transport. No batch is pending then.
  { d.split(color, key) } -> std::same_as<D>;
};

/// The device of an engine that is made with a D: D itself, or a Device that a header makes from a transport, such as
/// hvd/gpu.hpp from an NcclTransport.
template <class D>
struct device_for {
  using type = D;
};

}  // namespace hvd::inline HVD_ABI
