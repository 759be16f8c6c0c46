// error: trivially copyable values that can be assigned, not pointers or classes with copy constructors or const
// members
#include <hvd/send_recv.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

struct reading {
#ifdef BAD
  const int sensor;
#else
  int sensor;
#endif
  float value;
};

void f(hvd::SelfTransport& comm, std::vector<reading>& readings) { hvd::send(comm, readings, 0); }
