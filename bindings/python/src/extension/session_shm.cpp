// session_shm.cpp: a job of processes of one host.

#include "session_of.hpp"

#include <hvd/transport/shm.hpp>

#include <memory>
#include <string>

std::shared_ptr<hvd_python::session> hvd_python::connect_shm(const std::string& name, int rank, int size,
                                                             const session_options& how) {
  return std::make_shared<session_of<hvd::ShmTransport>>(hvd::ShmTransport(name, rank, size), how);
}
