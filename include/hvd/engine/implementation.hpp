// hvd/engine/implementation.hpp: the functions of BasicEngine; with HVD_COMPILED, hvd/compiled.hpp alone includes it.
#pragma once

#include <hvd/engine/basic_engine.hpp>
#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/process_sets.hpp>
#include <hvd/engine/validate.hpp>
#include <hvd/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#if HVD_COMPILED
#define HVD_INLINE
#else
#define HVD_INLINE inline
#endif

namespace hvd::inline HVD_ABI {

HVD_INLINE BasicEngine::BasicEngine(detail::erased_transport& comm, engine_options opts,
                                    std::unique_ptr<detail::erased_device> device)
    : rank_(comm.rank()), size_(comm.size()), sets_(std::make_unique<detail::process_sets>(opts)) {
  sets_->begin(comm, std::move(device));
}

HVD_INLINE void BasicEngine::continue_over(detail::erased_transport& comm,
                                           std::unique_ptr<detail::erased_device> device) {
  refuse_fork();
  sets_->shutdown(true);
  rank_ = comm.rank();
  size_ = comm.size();
  try {
    sets_->begin(comm, std::move(device));
  } catch (...) {
    sets_->shutdown();
    throw;
  }
}

HVD_INLINE BasicEngine::~BasicEngine() {
  shutdown();
  // A forked child leaks it: threads that exist only in the parent may have been changing it, or hold its locks.
  if (forked()) sets_.release();
}

HVD_INLINE handle BasicEngine::start(request r, int process_set, bool wake) {
  const auto d = driver(process_set);
  detail::erased_device* const device = d->device();
  const bool used = device != nullptr && detail::lies_on_device(r);
  if (used) device->choose(r.tensors.front().memory.device);
  detail::validate(r, d->rank(), d->size(), device != nullptr ? device->index() : -1, used && device->can.converts);
  if (used) device->check_request(r);
  return {d->submit(std::move(r), wake), d};
}

HVD_INLINE handle BasicEngine::join() {
  const auto d = driver(0);
  return {d->join(), d};
}

HVD_INLINE int BasicEngine::add_process_set(std::vector<int> ranks) {
  refuse_fork();
  detail::check_members(ranks, rank(), size());
  return sets_->add(std::move(ranks));
}

HVD_INLINE void BasicEngine::remove_process_set(int id) {
  refuse_fork();
  sets_->remove(id);
}

HVD_INLINE std::vector<int> BasicEngine::process_set(int id) const {
  refuse_fork();
  return sets_->ranks(id);
}

HVD_INLINE std::shared_ptr<std::byte> BasicEngine::alloc_bucket(std::size_t bytes) {
  refuse_fork();
  return sets_->bucket(bytes, memory_kind::host);
}

HVD_INLINE std::shared_ptr<std::byte> BasicEngine::alloc_device_bucket(std::size_t bytes, int device) {
  const auto d = driver(0);
  detail::erased_device* const own = d->device();
  if (own == nullptr || !own->can.allocates) {
    detail::fail(error_kind::unsupported, {"alloc_device_bucket on rank ", rank(), " of ", size(),
                                           ": this engine's device does not allocate memory; use the program's"});
  }
  own->choose(device);
  if (own->index() != device) {
    detail::fail(error_kind::invalid_argument, {"alloc_device_bucket on rank ", rank(), " of ", size(), ": device ",
                                                device, " is not this engine's, which is ", own->index()});
  }
  return sets_->bucket(bytes, memory_kind::device);
}

HVD_INLINE void BasicEngine::start_timeline(const std::string& path, bool mark_cycles) {
  refuse_fork();
  sets_->start_timeline(path, mark_cycles);
}

HVD_INLINE void BasicEngine::stop_timeline() {
  if (!forked()) sets_->stop_timeline();
}

HVD_INLINE void BasicEngine::shutdown() {
  if (forked()) return;
  sets_->shutdown();
}

HVD_INLINE void BasicEngine::settle() {
  refuse_fork();
  sets_->settle();
}

HVD_INLINE const Timeline& BasicEngine::timeline() const noexcept { return sets_->timeline; }

HVD_INLINE void BasicEngine::mark_step(std::uint64_t samples) noexcept {
  if (!forked()) sets_->mark_step(samples);
}

HVD_INLINE engine_metrics BasicEngine::metrics() const {
  refuse_fork();
  return sets_->metrics();
}

HVD_INLINE std::shared_ptr<detail::driver> BasicEngine::driver(int process_set) const {
  refuse_fork();
  return sets_->driver_of(process_set);
}

}  // namespace hvd::inline HVD_ABI

#undef HVD_INLINE
