// bench/coordinator/main.cpp: the program. It ends with 0, 1 (wrong results, a failure), 2 (bad input) or 128 + signal.
#include <bench/coordinator/command_line.hpp>
#include <bench/coordinator/engine.hpp>
#include <bench/coordinator/launched.hpp>
#include <bench/coordinator/run.hpp>
#include <bench/coordinator/signals.hpp>
#include <bench/report/explain.hpp>

#include <hvd/algorithm/direct.hpp>
#include <hvd/launch.hpp>

#include <tests/support/messages_only.hpp>

#include <cstdio>
#include <exception>

namespace {

/// The choices of `automatic` if `ranks` processes of this host share memory, and if they could only send messages.
int explain_choices(int ranks) {
  return hvd::fork_run(ranks, [](hvd::ShmTransport& comm) {
    const auto& m = comm.peers();
    const auto sizes = hvd::direct_sizes::derive(m);
    hvd::test::MessagesOnly messages(comm.split(0, comm.rank()));
    if (messages.size() > 1) hvd::make_ready(messages);
    if (comm.rank() != 0) return;
    std::printf(
        "%d ranks with common memory: direct, reductions by every rank up to %zu bytes, in chunks of %zu bytes\n"
        "through a ring of %zu bytes; buffers from alloc_shared in place from %zu bytes; output past the caches\n"
        "above %zu bytes\n",
        m.size(), sizes.one_shot_bytes, sizes.chunk_bytes, m.staging().bytes(), sizes.mapped_bytes,
        sizes.streaming_bytes);
    const hvd::line_costs& lines = m.costs();
    std::printf(
        "HVD_LINE_COSTS=%s (picoseconds for a line: until another core sees a store; a store after its copy; the same\n"
        "where it has touched the line, which costs both): what goes one way is %s\n",
        hvd::to_string(lines).c_str(), sizes.touch ? "touched" : "not touched");
    std::printf("the same ranks by messages:\n%s", hvd::bench::explain(messages.selection(), m.size(), false).c_str());
  });
}

}  // namespace

int main(int argc, char** argv) {
  using namespace hvd::bench;
  bool speaks = true;  // one process of a launcher's
  const auto say = [&](const char* what) {
    if (speaks) std::fprintf(stderr, "hvd-bench: %s\n", what);
  };
  try {
    const auto inside = find_launcher();
    speaks = !inside || inside->rank == 0;
    if (!speaks && std::freopen("/dev/null", "w", stdout) == nullptr) return 1;
    const auto o = parse_options(argc, argv, inside ? inside->size : 0);
    if (!o) return 0;
    if (o->list) {
      list();
      return 0;
    }
    const int code = o->explain                      ? explain_choices(o->ranks)
                     : o->kind == collective::engine ? run_engine(*o, inside)
                                                     : run(*o, inside);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      say("the table could not be written to standard output");
      return 1;
    }
    return code;
  } catch (const usage_error& e) {
    say(e.what());
    return 2;
  } catch (const interrupted& e) {
    say(e.what());
    return 128 + e.signal;
  } catch (const std::exception& e) {
    say(e.what());
    return 1;
  }
}
