// bench/hvd_bench.cpp: the program. It ends with 0, 1 (wrong results, a failure), 2 (bad input) or 128 + signal.
#include <bench/launched.hpp>
#include <bench/library.hpp>
#include <bench/options.hpp>
#include <bench/run.hpp>

#include <cstdio>
#include <exception>

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
    const int code = run(*o, inside);
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
