// hvd/transport/simulated/fiber.hpp: several stacks in one thread, between which it switches explicitly.
//
// By ucontext, whose switch makes one system call (it keeps the signal mask): a quarter of a microsecond, and correct
// on every CPU. The C++ runtime's state of exceptions in flight belongs to a stack and is switched with it.
#pragma once

#include <hvd/error.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <cxxabi.h>
#include <string>

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// AddressSanitizer's, as <sanitizer/common_interface_defs.h> declares them.
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack_save, const void* bottom, std::size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack_save, const void** bottom_old, std::size_t* size_old);
}

namespace hvd::inline HVD_ABI::detail {

// AddressSanitizer has to know on which stack a thread is.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool stacks_are_watched = true;
#elif defined(__has_feature)
inline constexpr bool stacks_are_watched = __has_feature(address_sanitizer);
#else
inline constexpr bool stacks_are_watched = false;
#endif

/// Memory for stacks; pages that are never touched cost nothing. Below each stack lies a guard page without access, so
/// that a stack that overflows ends the program instead of overwriting another fiber's data. With more than `guarded`
/// stacks there is none, because each takes two of the 65,530 mappings that the kernel gives a process.
class fiber_stacks {
 public:
  static constexpr std::size_t guarded = 16384;

  /// Errors: no_memory.
  fiber_stacks(std::size_t count, std::size_t bytes)
      : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))), bytes_((bytes + page_ - 1) / page_ * page_),
        mapped_(count * (page_ + bytes_)),
        memory_(::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0)) {
    if (memory_ == MAP_FAILED) {
      throw error(error_kind::no_memory, "cannot map " + std::to_string(count) + " stacks of " +
                                             std::to_string(bytes_) + " bytes: " + std::strerror(errno));
    }
    ::madvise(memory_, mapped_, MADV_NOHUGEPAGE);  // or one touched page would cost two megabytes
    for (std::size_t i = 0; count <= guarded && i != count; ++i) ::mprotect(at(i) - page_, page_, PROT_NONE);
  }
  fiber_stacks(const fiber_stacks&) = delete;
  fiber_stacks& operator=(const fiber_stacks&) = delete;
  ~fiber_stacks() { ::munmap(memory_, mapped_); }

  /// The lowest byte of stack i.
  [[nodiscard]] std::byte* at(std::size_t i) const noexcept {
    return static_cast<std::byte*>(memory_) + i * (page_ + bytes_) + page_;
  }
  /// Usable bytes of stack i. Not the same for all: tops at the same offset in a page would share the same few lines of
  /// the caches.
  [[nodiscard]] std::size_t bytes(std::size_t i) const noexcept { return bytes_ - i % 29 * 128; }

 private:
  std::size_t page_;
  std::size_t bytes_;
  std::size_t mapped_;
  void* memory_;
};

/// A stack and the state of its execution. A new fiber is the stack on which the thread already runs.
class fiber {
 public:
  fiber() = default;
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  /// The first switch to it calls `entry`, which must begin with `arrived` and end with `leave_to`.
  void prepare(std::byte* stack, std::size_t bytes, void (*entry)()) {
    ::getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    ::makecontext(&context_, entry, 0);
    bottom_ = stack;
    size_ = bytes;
  }

  /// Switches from this fiber, which is running, to another; returns when another fiber switches back.
  void switch_to(fiber& next) {
    auto* const runtime = reinterpret_cast<exceptions*>(abi::__cxa_get_globals());
    in_flight_ = *runtime;
    *runtime = next.in_flight_;
    next.from_ = this;
    if constexpr (stacks_are_watched) __sanitizer_start_switch_fiber(&fake_stack_, next.bottom_, next.size_);
    ::swapcontext(&context_, &next.context_);
    arrived();
  }
  /// The first thing on a stack.
  void arrived() {
    if constexpr (stacks_are_watched) __sanitizer_finish_switch_fiber(fake_stack_, &from_->bottom_, &from_->size_);
  }
  /// The last thing on a stack: nothing on it has a destructor left to run.
  [[noreturn]] void leave_to(fiber& next) {
    *reinterpret_cast<exceptions*>(abi::__cxa_get_globals()) = next.in_flight_;
    next.from_ = this;
    if constexpr (stacks_are_watched) __sanitizer_start_switch_fiber(nullptr, next.bottom_, next.size_);
    ::setcontext(&next.context_);
    __builtin_unreachable();
  }

 private:
  /// The state that the Itanium C++ ABI (2.2.2) keeps for each thread: the running handlers, and the number of uncaught
  /// exceptions.
  struct exceptions {
    void* caught = nullptr;
    unsigned int uncaught = 0;
  };

  ucontext_t context_;
  exceptions in_flight_;
  fiber* from_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace hvd::inline HVD_ABI::detail
