// hvd/engine.hpp: named tensors, submitted in any order by each rank, fused, and reduced in one agreed order.
#pragma once

#include <hvd/engine/basic_engine.hpp>
#include <hvd/engine/device.hpp>
#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/transport.hpp>

#if !HVD_COMPILED
#include <hvd/engine/implementation.hpp>
#endif

#include <concepts>
#include <utility>

namespace hvd::inline HVD_ABI {

/// An engine whose ranks agree over `Control`; see BasicEngine for its functions. Its destructor ends this rank's
/// operations in flight with an error of kind aborted; other ranks that wait for this rank get an error.
template <class Control, class D = no_device>
  requires CarriesEngine<Control> && (memory_of<Control> == memory_kind::host) &&
           (Device<typename device_for<D>::type> || std::same_as<D, no_device>)
class Engine : public BasicEngine {
 public:
  /// Collective over the group of `comm`, which stays the caller's. Errors: those of `split`; unsupported over an MPI
  /// that does not run at MPI_THREAD_MULTIPLE, and over an any_transport whose transport is not Probing or not
  /// Splitting; mismatch, on all ranks, if their options differ.
  explicit Engine(Control& comm, engine_options opts = engine_options::from_environment())
    requires std::same_as<D, no_device>
      : BasicEngine(erase(comm).self(), std::move(opts), nullptr) {}
  /// The same with a device, which the engine takes over. It connects the ranks of `comm`, with the same numbers.
  /// Further errors: unsupported over a simulation.
  Engine(Control& comm, D device, engine_options opts = engine_options::from_environment())
    requires(!std::same_as<D, no_device>)
      : BasicEngine(erase(comm).self(), std::move(opts), detail::erase_device(std::move(device))) {}

  /// Goes on over the group of `comm`, with the same options, for instance when a rank is lost (see
  /// ShmTransport::without_lost). Collective over that group, in which this rank may have another number. Operations in
  /// flight end with an error, which names the lost rank. Names and process sets start again: any name is free, for any
  /// shape. Memory of alloc_bucket stays valid, but is copied in reductions; allocate it again. Counters and a timeline
  /// go on; each call begins the next round of both (`engine_metrics::round`). No other thread may submit meanwhile.
  /// Errors: those of the constructor; this engine has then ended, and can be asked again over another group.
  void continue_over(Control& comm)
    requires std::same_as<D, no_device>
  {
    BasicEngine::continue_over(erase(comm).self(), nullptr);
  }
  /// The same with a device that connects the ranks of `comm`.
  void continue_over(Control& comm, D device)
    requires(!std::same_as<D, no_device>)
  {
    BasicEngine::continue_over(erase(comm).self(), detail::erase_device(std::move(device)));
  }
};

}  // namespace hvd::inline HVD_ABI
