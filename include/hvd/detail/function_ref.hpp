// hvd/detail/function_ref.hpp: a reference to a function object, for parameters that are called and not kept.
#pragma once

#include <hvd/version.hpp>

#include <concepts>
#include <type_traits>

namespace hvd::inline HVD_ABI::detail {

template <class Signature>
class function_ref;

/// A function object by reference, which must outlive this; or none. (<functional> takes longer to compile than most
/// headers of hvd.)
template <class R, class... A>
class function_ref<R(A...)> {
 public:
  function_ref() = default;
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, function_ref> && std::is_invocable_r_v<R, const F&, A...>)
  function_ref(const F& f) noexcept
      : object_(&f), call_([](const void* object, A... a) -> R { return (*static_cast<const F*>(object))(a...); }) {}

  explicit operator bool() const noexcept { return call_ != nullptr; }
  R operator()(A... a) const { return call_(object_, a...); }

 private:
  const void* object_ = nullptr;
  R (*call_)(const void*, A...) = nullptr;
};

}  // namespace hvd::inline HVD_ABI::detail
