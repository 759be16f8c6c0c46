// bench/rank/worker.hpp: the life of one rank of a library under measurement; the same code for hvd and for its peers.
//
// A peer is a program of three lines:
//
//   int main(int argc, char** argv) {
//     return hvd::bench::worker_main([&](hvd::bench::place at) { return my_backend(argc, argv, at); });
//   }
#pragma once

#include <bench/backend.hpp>
#include <bench/rank/place.hpp>
#include <bench/stage.hpp>

#include <cstdio>
#include <exception>
#include <type_traits>

namespace hvd::bench {

/// Runs jobs until the coordinator has no more; returns the exit code. Compiled once, in worker.cpp.
int serve(const Stage& stage, erased_backend b);

/// The result of f; or the exit code of a rank whose stage has ended, or which reports on the stage why it cannot go
/// on.
template <class F>
int exit_code_of(const Stage& stage, int rank, const F& f) {
  try {
    return f();
  } catch (const stage_ended&) {
    return 3;
  } catch (const std::exception& e) {
    report_start_failure(stage, rank, e.what());
    return 1;
  }
}

/// The whole program of a peer: joins the stage, pins, makes the backend and serves.
template <class Make>
  requires Backend<std::remove_cvref_t<std::invoke_result_t<Make&, place>>>
int worker_main(Make make) {
  place at;
  try {
    const Stage stage = open_stage();
    at = find_place();
    return exit_code_of(stage, at.rank, [&] {
      pin_to_list(at.rank);  // before the library starts threads
      auto backend = make(at);
      return serve(stage, erase(backend));
    });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", at.rank, e.what());
    return 1;
  }
}

}  // namespace hvd::bench
