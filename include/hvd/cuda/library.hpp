// hvd/cuda/library.hpp: a shared library that is found at run time, so that one program runs with and without it.
#pragma once

#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// An address as a function of the declared type, which is the same to the machine as the library's own.
template <class F>
void as_function(F*& function, void* address) noexcept {
  function = reinterpret_cast<F*>(address);
}

/// A library opened by name, or a sentence with the names that were searched. It is never closed: its threads and exit
/// handlers may run until the process ends.
class dynamic_library {
 public:
  /// Looks for, in this order: the file that `variable` (an environment variable) names, and then nothing else; a copy
  /// that the process has loaded, such as PyTorch's; `name` by the dynamic linker's search.
  static dynamic_library find(const char* name, const char* variable) {
    dynamic_library found;
    const char* const path = std::getenv(variable);
    const bool given = path != nullptr && *path != '\0';
    found.name_ = given ? path : name;
    if (!given) found.handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (found.handle_ == nullptr) found.handle_ = ::dlopen(found.name_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (found.handle_ == nullptr) {
      const char* const reason = ::dlerror();
      found.why_ =
          given ? joined({path, ", which ", variable, " names"}) : joined({name, " by the dynamic linker's search"});
      found.why_ += joined({": ", reason != nullptr ? reason : "it cannot be opened"});
      if (!given) found.why_ += joined({"; ", variable, " can name the file"});
    }
    return found;
  }

  [[nodiscard]] explicit operator bool() const noexcept { return handle_ != nullptr; }
  /// The name under which the library was opened.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// If it was not found: the names that were searched, and the dynamic linker's message.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  /// The address of a function; null if this version of the library does not have it.
  template <class F>
  void look_up(F*& function, const char* symbol) const noexcept {
    as_function(function, handle_ == nullptr ? nullptr : ::dlsym(handle_, symbol));
  }

 private:
  void* handle_ = nullptr;
  std::string name_, why_;
};

}  // namespace hvd::inline HVD_ABI::detail
