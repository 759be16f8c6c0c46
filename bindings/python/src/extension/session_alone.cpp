// session_alone.cpp: a job of one process.

#include "session_of.hpp"

#include <hvd/transport/self.hpp>

#include <memory>

std::shared_ptr<hvd_python::session> hvd_python::connect_alone(const session_options& how) {
  return std::make_shared<session_of<hvd::SelfTransport>>(hvd::SelfTransport(), how);
}
