// One way to start, to fail or to end, named by the argument; tests/transport/mpi_faults.py starts it and judges.
#include <hvd/transport/mpi.hpp>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

bool stuck = false;  // MPI_Finalize does not return

void sleep_for(int seconds) { std::this_thread::sleep_for(std::chrono::seconds(seconds)); }

int sum_of_ranks(hvd::MpiTransport& comm) {
  int mine = comm.rank() + 1, sum = 0;
  const hvd::reduction r = hvd::make_reduction<int>(hvd::sum, comm.size());
  comm.native(hvd::allreduce_call{reinterpret_cast<std::byte*>(&mine), reinterpret_cast<std::byte*>(&sum), 1, r});
  return sum;
}
void say(hvd::MpiTransport& comm) {
  const int sum = sum_of_ranks(comm);
  if (comm.rank() == 0) std::printf("%d ranks, sum %d\n", comm.size(), sum);
}
void receive_from_1(hvd::MpiTransport& comm) {
  std::byte one{};
  comm.recv(&one, 1, 1);
}

// hvd starts MPI, and ends it when the process ends; one group after the other.
void unprepared() {
  for (int k = 0; k != 2; ++k) {
    hvd::MpiTransport comm;
    say(comm);
  }
}
// The program starts MPI at that level and ends it.
void prepared(int level) {
  int given = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, level, &given);
  {
    auto options = hvd::mpi_options::from_environment();
    options.thread_level = level;
    hvd::MpiTransport comm(MPI_COMM_WORLD, options);
    say(comm);
  }
  MPI_Finalize();
}
// The same, but the transport outlives MPI.
void outlives() {
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, std::make_unique<int>().get());
  hvd::MpiTransport comm;
  say(comm);
  MPI_Finalize();
}
void too_low() {
  MPI_Init(nullptr, nullptr);
  hvd::MpiTransport comm;
}
void too_low_for_threads() {
  int given = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given);
  auto options = hvd::mpi_options::from_environment();
  options.thread_level = MPI_THREAD_MULTIPLE;
  hvd::MpiTransport comm(MPI_COMM_WORLD, options);
}
void too_late() {
  MPI_Init(nullptr, nullptr);
  MPI_Finalize();
  hvd::MpiTransport comm;
}
void throws() {
  hvd::MpiTransport comm;
  if (comm.rank() == 1) throw std::runtime_error("rank 1 throws");
  receive_from_1(comm);
}
void leaves() {
  hvd::MpiTransport comm;
  if (comm.rank() == 1) std::exit(0);
  receive_from_1(comm);
}
void vanishes() {
  hvd::MpiTransport comm;
  if (comm.rank() == 1) std::_Exit(0);
  receive_from_1(comm);
}
void killed() {
  hvd::MpiTransport comm;
  if (comm.rank() == 1) std::raise(SIGKILL);
  receive_from_1(comm);
}
void killed_in_native() {
  hvd::MpiTransport comm;
  if (comm.rank() == 1) std::raise(SIGKILL);
  say(comm);
}
void silent() {
  hvd::MpiTransport comm;
  if (comm.rank() == 1) sleep_for(60);
  comm.barrier();
}
void forgives() {
  try {
    silent();
  } catch (const hvd::error& e) {
    std::fprintf(stderr, "forgiven: %s\n", e.what());
  }
}

const std::map<std::string, void (*)()> ways = {
    {"unprepared", unprepared},
    {"stuck", [] { stuck = true, unprepared(); }},
    {"prepared", [] { prepared(MPI_THREAD_SERIALIZED); }},
    {"single", [] { prepared(MPI_THREAD_SINGLE); }},
    {"outlives", outlives},
    {"too_low", too_low},
    {"too_low_for_threads", too_low_for_threads},
    {"too_late", too_late},
    {"throws", throws},
    {"leaves", leaves},
    {"vanishes", vanishes},
    {"killed", killed},
    {"killed_in_native", killed_in_native},
    {"silent", silent},
    {"forgives", forgives},
};

}  // namespace

/// Instead of MPI's own: see its profiling interface.
extern "C" int MPI_Finalize() {
  while (stuck) sleep_for(1);
  return PMPI_Finalize();
}

int main(int argc, char** argv) {
  try {
    ways.at(argc == 2 ? argv[1] : "")();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
