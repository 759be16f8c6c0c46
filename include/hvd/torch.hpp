// hvd/torch.hpp: tensors of libtorch in collectives, and gradients that are reduced while the backward pass goes on.
#pragma once

#include <hvd/engine.hpp>
#include <hvd/torch/reducer.hpp>
#include <hvd/torch/tensors.hpp>

#include <ATen/core/Tensor.h>

#include <memory>
#include <ranges>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// Reduces the gradients of named parameters over all ranks, each as soon as the backward pass has accumulated it:
///
///     hvd::DistributedGradients gradients(engine, model->named_parameters());
///     for (...) {
///       gradients.zero_grad();
///       loss_of(model, batch).backward();  // reductions begin in here
///       gradients.synchronize();           // now all gradients are averages
///       optimizer.step();
///     }
///
/// A hook of `Tensor::register_hook` cannot do this: it gets the gradient that arrives, before it is added to
/// `param.grad()`, in memory that libtorch frees or reuses right after. Reducing the gradient there crashes, or gives
/// ranks different weights. This class acts after the accumulation.
///
/// All parameters with requires_grad have a gradient from the start: zeros in memory of Engine::alloc_bucket, where an
/// allreduce copies nothing. `zero_grad()` below keeps it there. So does `optimizer.zero_grad(false)`. After libtorch's
/// default, which sets gradients to None, the backward pass makes new gradients elsewhere; they are copied into their
/// place, with the same result. The gradient of a parameter that the pass did not use counts as zeros.
///
/// Make it when the model has its final type and place. Gradients must be dense and on the host. Destroy it and the
/// engine in any order, outside of a backward pass; without the engine, neither a backward pass nor
/// synchronize() may run before this is destroyed too. Gradients stay valid: their memory lives as long as they do.
class DistributedGradients {
 public:
  /// Collective; waits. `named` is a range of pairs of name and tensor, as `named_parameters()` returns it; names,
  /// order, types and shapes are the same on all ranks. Parameters without requires_grad are left out, and a parameter
  /// with several names is reduced once, under the first name. Errors: mismatch, on all ranks, if ranks pass different
  /// parameters; invalid_argument for a parameter that is not a leaf, or that view_of refuses; unsupported for its
  /// type; those of Engine::alloc_bucket.
  template <std::ranges::range Named>
  DistributedGradients(BasicEngine& engine, const Named& named, gradient_options how = {})
      : reducer_(std::make_shared<reducer>(engine, slots_of(named), std::move(how))) {
    reducer::listen(reducer_);
  }
  DistributedGradients(DistributedGradients&&) noexcept = default;
  DistributedGradients& operator=(DistributedGradients&&) noexcept = default;

  /// Waits until `param.grad()` of every parameter is reduced; call it once a step, on all ranks. A gradient that no
  /// backward pass has completed is submitted as it is; a missing gradient is submitted as zeros. Throws the first
  /// error when everything else is complete: invalid_argument for a gradient that is sparse or on a device, and those
  /// of Engine::submit and of handles. The backward pass itself throws invalid_argument when it computes a gradient
  /// again before this is called, and for a gradient that cannot be reduced.
  void synchronize() { reducer_->synchronize(); }
  /// Zeros all gradients; puts them back into the bucket if they were set to None. Errors: invalid_argument between a
  /// backward pass and `synchronize()`.
  void zero_grad() { reducer_->zero(); }

 private:
  using reducer = detail::gradient_reducer;

  template <class Named>
  static std::vector<detail::gradient_slot> slots_of(const Named& named) {
    std::vector<detail::gradient_slot> all;
    std::unordered_set<const void*> known;
    for (const auto& one : named) {
      const auto add = [&](const std::string& name, const at::Tensor& p) {
        if (p.defined() && p.requires_grad() && known.insert(p.unsafeGetTensorImpl()).second)
          all.push_back({.parameter = p, .name = name, .remaining = 0});
      };
      if constexpr (requires { one.key(); }) {  // torch::OrderedDict
        add(one.key(), one.value());
      } else {
        add(one.first, one.second);
      }
    }
    return all;
  }

  std::shared_ptr<reducer> reducer_;
};

}  // namespace hvd::inline HVD_ABI
