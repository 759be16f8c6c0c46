// error: not pointers or classes with copy constructors or const members: other ranks receive their bytes
#include <hvd/send_recv.hpp>
#include <hvd/transport/self.hpp>

#include <string>
#include <vector>

void f(hvd::SelfTransport& comm) {
#ifdef BAD
  std::vector<std::string> text(8);
#else
  std::string text(8, ' ');
#endif
  hvd::send(comm, text, 0);
}
