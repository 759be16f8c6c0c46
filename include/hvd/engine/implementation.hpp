// hvd/engine/implementation.hpp: the functions of BasicEngine, which hvd/compiled.hpp compiles for HVD_COMPILED.
#pragma once

#include <hvd/detail/random_word.hpp>
#include <hvd/engine/basic_engine.hpp>
#include <hvd/engine/clock.hpp>
#include <hvd/engine/process_sets.hpp>
#include <hvd/engine/validate.hpp>
#include <hvd/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

template <class D>
BasicEngine<D>::BasicEngine(detail::erased_transport& comm, engine_options opts, device_type device)
    : rank_(comm.rank()), size_(comm.size()),
      sets_(std::make_unique<sets_type>(rank_, size_, detail::agree_on_clock(comm, detail::random_word()), opts)) {
  comm.require_engine();
  if (!std::same_as<D, no_device> && comm.simulated()) {
    detail::fail(error_kind::unsupported, {"Engine on rank ", rank_, " of ", size_,
                                           ": a device needs ranks that run in real time, not simulated ones"});
  }
  if (size_ > 1) detail::agree_on_options(comm, opts, !std::same_as<D, no_device>);
  if (!opts.timeline.empty() && !opts.records_in) start_timeline(opts.timeline, opts.mark_cycles);
  try {
    auto control = comm.split(0, rank_);
    auto data = comm.split(0, rank_);
    sets_->start(std::move(control), std::move(data), std::move(device));
    if (opts.watch && opts.thread && size_ > 1) sets_->start_watch(comm.split(0, rank_));
  } catch (const error& e) {
    detail::fail_at_start(comm, e, sets_->causes());
  }
}

template <class D>
BasicEngine<D>::~BasicEngine() {
  shutdown();
  // A forked child leaks it: threads that exist only in the parent may have been changing it, or hold its locks.
  if (forked()) sets_.release();
}

template <class D>
handle BasicEngine<D>::start(request r, int process_set, bool wake) {
  const auto d = driver(process_set);
  if constexpr (requires { d->device().choose(r); }) d->device().choose(r);
  detail::validate(r, d->rank(), d->size(), d->device_index(), detail::device_converts<device_type>);
  if constexpr (requires { d->device().check_request(r); }) d->device().check_request(r);
  return {d->submit(std::move(r), wake), d};
}

template <class D>
handle BasicEngine<D>::join() {
  const auto d = driver(0);
  return {d->join(), d};
}

template <class D>
int BasicEngine<D>::add_process_set(std::vector<int> ranks) {
  refuse_fork();
  detail::check_members(ranks, rank(), size());
  return sets_->add(std::move(ranks));
}

template <class D>
void BasicEngine<D>::remove_process_set(int id) {
  refuse_fork();
  sets_->remove(id);
}

template <class D>
std::vector<int> BasicEngine<D>::process_set(int id) const {
  refuse_fork();
  return sets_->ranks(id);
}

template <class D>
std::shared_ptr<std::byte> BasicEngine<D>::alloc_bucket(std::size_t bytes) {
  refuse_fork();
  return sets_->bucket(bytes, memory_kind::host);
}

template <class D>
std::shared_ptr<std::byte> BasicEngine<D>::alloc_device_bucket(std::size_t bytes, int device) {
  const auto d = driver(0);
  if constexpr (requires { d->device().bucket(bytes, d->largest()); }) {
    if constexpr (requires { d->device().choose(device); }) d->device().choose(device);
    if (d->device_index() == device) return sets_->bucket(bytes, memory_kind::device);
    detail::fail(error_kind::invalid_argument, {"alloc_device_bucket on rank ", rank_, " of ", size_, ": device ",
                                                device, " is not this engine's, which is ", d->device_index()});
  } else {
    detail::fail(error_kind::unsupported, {"alloc_device_bucket on rank ", rank_, " of ", size_,
                                           ": this engine's device does not allocate memory; use the program's"});
  }
}

template <class D>
void BasicEngine<D>::start_timeline(const std::string& path, bool mark_cycles) {
  refuse_fork();
  sets_->start_timeline(path, mark_cycles);
}

template <class D>
void BasicEngine<D>::stop_timeline() {
  if (!forked()) sets_->timeline.stop();
}

template <class D>
void BasicEngine<D>::shutdown() {
  if (forked()) return;
  sets_->shutdown();
}

template <class D>
void BasicEngine<D>::settle() {
  refuse_fork();
  sets_->settle();
}

template <class D>
const Timeline& BasicEngine<D>::timeline() const noexcept {
  return sets_->timeline;
}

template <class D>
void BasicEngine<D>::mark_step(std::uint64_t samples) noexcept {
  if (!forked()) sets_->mark_step(samples);
}

template <class D>
engine_metrics BasicEngine<D>::metrics() const {
  refuse_fork();
  return sets_->metrics();
}

template <class D>
std::shared_ptr<detail::driver<typename BasicEngine<D>::device_type>> BasicEngine<D>::driver(int process_set) const {
  refuse_fork();
  return sets_->driver_of(process_set);
}

}  // namespace hvd::inline HVD_ABI
