// Preloaded into the ranks, it mends two things in MPICH 4.0 over UCX that matter with more ranks than CPUs.
//
// MPI_Finalize hangs, with three hosts in most runs. A rank disconnects from all others, which needs answers from them,
// and then waits for all in a barrier of the process manager, in which it answers nobody: who is later is never
// answered (MPICH's pull request 6596). Here a rank that waits in that barrier goes on to answer.
//
// Waiting ranks never give up their CPU, so that each message to one that has none takes some milliseconds. Here a rank
// that has looked for messages in vain lets others run.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstddef>

// As in ucp/api/ucp.h; all of them are pointers and numbers.
using Worker = void*;
extern "C" unsigned ucp_worker_progress(Worker) __attribute__((weak));

namespace {
Worker worker = nullptr;
thread_local bool leaving = false;  // of UCX's own threads, which read too, none is

template <typename Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
}  // namespace

extern "C" {
int ucp_worker_create(void* context, const void* parameters, Worker* made) {
  const int status = next(&ucp_worker_create, "ucp_worker_create")(context, parameters, made);
  if (status == 0 && worker == nullptr) worker = *made;
  return status;
}

void ucp_worker_destroy(Worker ended) {
  if (ended == worker) leaving = false;
  next(&ucp_worker_destroy, "ucp_worker_destroy")(ended);
}

void* ucp_disconnect_nb(void* endpoint) {
  leaving = worker != nullptr;
  return next(&ucp_disconnect_nb, "ucp_disconnect_nb")(endpoint);
}

ssize_t read(int file, void* data, std::size_t bytes) {
  static const auto really = next(&read, "read");
  if (leaving && (fcntl(file, F_GETFL) & O_NONBLOCK) == 0) {
    for (pollfd ready{file, POLLIN, 0}; poll(&ready, 1, 0) == 0;) {
      if (ucp_worker_progress(worker) == 0) sched_yield();
    }
  }
  return really(file, data, bytes);
}

int epoll_wait(int file, epoll_event* events, int most, int milliseconds) {
  static const auto really = next(&epoll_wait, "epoll_wait");
  const int found = really(file, events, most, milliseconds);
  if (found == 0 && milliseconds == 0) sched_yield();
  return found;
}
}
