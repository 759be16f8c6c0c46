// error: all others need PointToPoint
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

// Ranks that can only wait for each other.
struct Meeting {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier() {}
  Meeting split(int /*color*/, int /*key*/) { return {}; }
};
static_assert(hvd::Transport<Meeting> && !hvd::PointToPoint<Meeting>);

#ifdef BAD
using transport = Meeting;
#else
using transport = hvd::SelfTransport;
#endif

void f(transport& comm, std::vector<int>& v) { hvd::allreduce(comm, v, hvd::sum, hvd::ring{}); }
