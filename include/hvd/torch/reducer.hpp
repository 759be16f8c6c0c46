// hvd/torch/reducer.hpp: the state of DistributedGradients, from the backward pass to the end of the reductions.
#pragma once

#include <hvd/detail/text_hash.hpp>
#include <hvd/dtype.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/engine.hpp>
#include <hvd/error.hpp>
#include <hvd/torch/tensors.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The options for reducing gradients. The same on all ranks.
struct gradient_options {
  dynamic_op op = average;
  dtype wire = dtype::user;  ///< as in request
  /// Places gradients in memory from Engine::alloc_bucket, where they are reduced without a copy.
  bool buckets = true;
  /// The number of backward passes that add to a gradient before it is reduced. They form a sum.
  int backward_passes_per_step = 1;
  /// Gradients are collected until they have so many bytes, and then submitted: fewer switches between threads.
  std::size_t bytes_together = std::size_t{1} << 20;
  std::string prefix = "gradient.";  ///< of the names in the engine; distinguishes two models
};

namespace detail {

/// A parameter, its place in the bucket, and how far its gradient is in this step.
struct gradient_slot {
  at::Tensor parameter;
  std::string name;
  int remaining;       ///< backward passes until the gradient is complete
  at::Tensor place{};  ///< undefined without a bucket
  handle end{};
  bool in_flight = false;
  std::size_t bytes = parameter.nbytes();
  // The parameter itself holds this node only weakly, and the hook lives in the node.
  decltype(torch::autograd::impl::grad_accumulator(parameter)) node{};
  std::uintptr_t hook = 0;
};

/// Called whenever a gradient has been accumulated.
struct after_accumulation final : torch::autograd::FunctionPostHook {
  explicit after_accumulation(std::function<void()> f) : call(std::move(f)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    call();
    return outputs;
  }
  std::function<void()> call;
};

/// True if elements lie in the same order. Strides of dimensions of length 1 do not matter.
inline bool same_order(const at::Tensor& a, const at::Tensor& b) {
  for (std::int64_t i = 0; i != a.dim(); ++i) {
    if (a.size(i) != b.size(i) || (a.size(i) > 1 && a.stride(i) != b.stride(i))) return false;
  }
  return a.dim() == b.dim();
}

/// A parameter in a text that ranks compare, by its name, type, shape and order in memory.
inline std::string signature_of(const gradient_slot& slot) {
  std::string text = joined({slot.name, " ", c10::toString(slot.parameter.scalar_type())});
  for (std::int64_t i = 0; i != slot.parameter.dim(); ++i) {
    const std::int64_t length = slot.parameter.size(i);
    text += joined({" ", length, ":", length > 1 ? slot.parameter.stride(i) : 0});
  }
  return text + "\n";
}

class gradient_reducer {
 public:
  gradient_reducer(BasicEngine& engine, std::vector<gradient_slot> all, gradient_options how)
      : engine_(engine), how_(std::move(how)), slots_(std::move(all)) {
    if (how_.backward_passes_per_step < 1) {
      fail(error_kind::invalid_argument,
           {"backward_passes_per_step is ", how_.backward_passes_per_step, "; allowed: 1 or more"});
    }
    for (gradient_slot& slot : slots_) {
      slot.remaining = how_.backward_passes_per_step;
      if (!slot.parameter.is_leaf()) {
        fail(error_kind::invalid_argument,
             {"parameter ", slot.name, " was computed from others: only a leaf has a gradient of its own"});
      }
      view_of_torch(slot.parameter, "parameter " + slot.name);
    }
    agree();
    if (how_.buckets) make_places();
  }
  gradient_reducer(const gradient_reducer&) = delete;
  gradient_reducer& operator=(const gradient_reducer&) = delete;
  ~gradient_reducer() {
    for (gradient_slot& slot : slots_) {
      if (slot.node) slot.node->del_post_hook(slot.hook);
    }
  }

  static void listen(const std::shared_ptr<gradient_reducer>& self) {
    for (std::size_t i = 0; i != self->slots_.size(); ++i) {
      gradient_slot& slot = self->slots_[i];
      slot.node = torch::autograd::impl::grad_accumulator(slot.parameter);
      slot.hook = slot.node->add_post_hook(std::make_unique<after_accumulation>([weak = std::weak_ptr(self), i] {
        if (const auto me = weak.lock()) me->arrived(i);
      }));
    }
  }

  void synchronize() {
    const std::lock_guard lock(mutex_);
    std::exception_ptr problem;
    const auto attempt = [&](auto what) {
      try {
        what();
      } catch (...) {
        if (!problem) problem = std::current_exception();
      }
    };
    for (gradient_slot& slot : slots_) {
      // Frozen ones have no gradient. This thread waits at once, and does the work itself.
      if (!slot.in_flight && slot.parameter.requires_grad()) attempt([&] { begin(slot, false); });
    }
    for (gradient_slot& slot : slots_) {
      if (std::exchange(slot.in_flight, false)) attempt([&] { slot.end.wait(); });
      slot.remaining = how_.backward_passes_per_step;
      slot.end = {};
    }
    collected_.clear();
    collected_bytes_ = 0;
    if (problem) std::rethrow_exception(problem);
  }

  void zero() {
    const std::lock_guard lock(mutex_);
    for (gradient_slot& slot : slots_) {
      if (slot.in_flight || slot.remaining <= 0) {
        fail(error_kind::invalid_argument, {"zero_grad: the gradient of ", slot.name,
                                            " is being reduced; call synchronize() after the backward pass"});
      }
      slot.remaining = how_.backward_passes_per_step;
      at::Tensor& g = slot.parameter.mutable_grad();
      if (slot.place.defined() && slot.parameter.requires_grad()) g = slot.place;
      if (g.defined()) g.detach().zero_();
    }
  }

 private:
  /// With other parameters, or in another order, names would wait for each other and places differ.
  void agree() {
    std::string all = joined({how_.buckets ? "in buckets " : "", how_.backward_passes_per_step, "\n"});
    for (const gradient_slot& slot : slots_) all += signature_of(slot);
    const std::array mine{text_hash(all)};
    const handle h = engine_.allgather(how_.prefix + "parameters", mine);
    h.wait();
    for (int rank = 1; rank < engine_.size(); ++rank) {
      const std::byte* const data = h.output().data.get();
      if (std::memcmp(data, data + sizeof mine * static_cast<std::size_t>(rank), sizeof mine) == 0) continue;
      fail(error_kind::mismatch,
           {"DistributedGradients on rank ", engine_.rank(), " of ", engine_.size(), ": rank ", rank,
            " has different parameters or options from rank 0; names, order, types and shapes must be the same"},
           rank);
    }
  }

  /// In the order in which the backward pass reaches them: the last one first, each on a cache line.
  void make_places() {
    constexpr std::size_t line = 64;
    std::size_t total = 0;
    for (const gradient_slot& slot : slots_) total += (slot.bytes + line - 1) / line * line;
    if (total == 0) return;
    const std::shared_ptr<std::byte> bucket = engine_.alloc_bucket(total);
    std::size_t start = total;
    for (gradient_slot& slot : slots_) {
      start -= (slot.bytes + line - 1) / line * line;
      if (slot.bytes == 0) continue;
      const at::Tensor& p = slot.parameter;
      slot.place = at::from_blob(
          bucket.get() + start, p.sizes(), p.strides(), [bucket](void*) {}, p.options().requires_grad(false));
      at::Tensor& g = slot.parameter.mutable_grad();
      if (g.defined()) slot.place.copy_(g.detach());
      g = slot.place;
    }
  }

  void arrived(std::size_t i) {
    const std::lock_guard lock(mutex_);
    gradient_slot& slot = slots_[i];
    if (slot.remaining <= 0) {
      fail(error_kind::invalid_argument,
           {"the gradient of ", slot.name, " was computed again before synchronize(); call it after each ",
            how_.backward_passes_per_step, " backward passes, or set backward_passes_per_step"});
    }
    if (--slot.remaining > 0) return;
    collected_.push_back(i);
    collected_bytes_ += slot.bytes;
    if (collected_bytes_ < how_.bytes_together) return;
    collected_bytes_ = 0;
    for (const std::size_t one : std::exchange(collected_, {})) begin(slots_[one], one == i);
  }

  void begin(gradient_slot& slot, bool wake) {
    const at::Tensor& p = slot.parameter;
    at::Tensor& g = p.mutable_grad();
    if (!g.defined()) g = slot.place.defined() ? slot.place.zero_() : at::zeros_like(p);
    const std::string what = "the gradient of " + slot.name;
    if (g.layout() == at::kStrided && g.is_cpu()) own(slot, g);
    request r;
    r.name = how_.prefix + slot.name;
    r.op = how_.op.op;
    r.prescale = how_.op.prescale;
    r.postscale = how_.op.postscale;
    r.wire = how_.wire;
    r.keep = std::make_shared<at::Tensor>(g);  // also if the user sets it to None meanwhile
    r.tensors.push_back(tensor_of(view_of_torch(g, what)));
    slot.end = engine_.submit(std::move(r), 0, wake);
    slot.in_flight = true;
  }

  /// Moves a gradient into memory that no other tensor uses: if libtorch can, it makes the arriving tensor the
  /// gradient, without checking for views that share its memory.
  void own(const gradient_slot& slot, at::Tensor& g) {
    const at::Tensor& p = slot.parameter;
    const bool in_place = slot.place.defined() && g.data_ptr() == slot.place.data_ptr();
    if (same_order(g, p) && (in_place || (!slot.place.defined() && g.storage().use_count() == 1))) return;
    const at::Tensor from = in_place ? g.detach().clone() : g.detach();
    g = (slot.place.defined() ? slot.place : at::empty_like(p)).copy_(from);
  }

  BasicEngine& engine_;
  const gradient_options how_;
  std::mutex mutex_;  // a backward pass may run hooks in several threads
  std::vector<gradient_slot> slots_;
  std::vector<std::size_t> collected_;  // complete, and not submitted yet
  std::size_t collected_bytes_ = 0;
};

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
