// hvd/shared_memory/fork_guard.hpp: makes a forked child release its parent's descriptors and locks.
//
// A child inherits its parent's file descriptors, and with them the locks by which peers see that the parent lives: a
// child that outlives its parent would hide the parent's death. So the child closes them at once. (A child made by a
// bare clone system call runs no handlers; it releases them when it executes another program.)
#pragma once

#include <hvd/version.hpp>

#include <cstddef>
#include <mutex>
#include <new>

#include <pthread.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Registers a descriptor for the time it is open. In a forked child the descriptor is closed and `forgotten`
/// is called with `context`.
class fork_guard {
  struct registry;

 public:
  /// While one exists no thread forks: for the moment between making a descriptor or a mapping and registering it.
  class pause {
   public:
    pause() : lock_(registry::instance().pause) {}

   private:
    std::lock_guard<std::mutex> lock_;
  };

  fork_guard(int fd, void (*forgotten)(void*), void* context) : fd_(fd), forgotten_(forgotten), context_(context) {
    registry& all = registry::instance();
    const std::lock_guard lock(all.mutex);
    next_ = all.first;
    all.first = this;
  }
  fork_guard(const fork_guard&) = delete;
  fork_guard& operator=(const fork_guard&) = delete;
  ~fork_guard() {
    registry& all = registry::instance();
    const std::lock_guard lock(all.mutex);
    fork_guard** link = &all.first;
    while (*link != this) link = &(*link)->next_;
    *link = next_;
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  struct registry {
    std::mutex pause;  // locked before `mutex`
    std::mutex mutex;
    fork_guard* first = nullptr;

    // Never destroyed: transports with static lifetime may outlast any static object here. In static memory, so that it
    // cannot throw bad_alloc.
    static registry& instance() {
      alignas(registry) static std::byte place[sizeof(registry)];
      static registry* const all = [] {
        ::pthread_atfork(&before, &in_parent, &in_child);
        return ::new (static_cast<void*>(place)) registry;
      }();
      return *all;
    }
    static void before() {
      instance().pause.lock();
      instance().mutex.lock();
    }
    static void in_parent() {
      instance().mutex.unlock();
      instance().pause.unlock();
    }
    static void in_child() {
      for (fork_guard* g = instance().first; g != nullptr; g = g->next_) {
        if (g->fd_ >= 0) ::close(g->fd_);
        g->fd_ = -1;
        if (g->forgotten_ != nullptr) g->forgotten_(g->context_);
      }
      in_parent();
    }
  };

  int fd_;
  void (*forgotten_)(void*);
  void* context_;
  fork_guard* next_ = nullptr;
};

}  // namespace hvd::inline HVD_ABI::detail
