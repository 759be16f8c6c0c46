// bench/coordinator/command_line.cpp: nccl-tests' flags and our own, checked before anything starts.
#include <bench/coordinator/command_line.hpp>

#include <bench/backends/hvd.hpp>
#include <bench/cases/inputs.hpp>
#include <bench/coordinator/flag_values.hpp>
#include <bench/coordinator/flags.hpp>
#include <bench/coordinator/launchers.hpp>
#include <bench/sizes.hpp>

#include <hvd/topology.hpp>
#include <hvd/version.hpp>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>

namespace hvd::bench {
namespace {

/// Unexpected words of the command line: an unknown flag with its value, or a word too many.
std::string unknown_words(const std::vector<std::string>& extras, int argc, char** argv, const std::string& kind) {
  const auto extra = [&](const char* word) { return std::find(extras.begin(), extras.end(), word) != extras.end(); };
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with('-') || !extra(argv[i])) continue;
    const bool has_value = i + 1 < argc && argv[i + 1][0] != '-' && word.find('=') == std::string::npos;
    return word + (has_value ? std::string(" ") + argv[i + 1] : "") + " is not known: there is no flag " +
           word.substr(0, word.find('=')) + "; hvd-bench --help lists the allowed ones";
  }
  return (extras.empty() ? "a word" : extras.front()) + " is too much after " + kind +
         "; write hvd-bench COLLECTIVE and then flags, as hvd-bench --help lists them";
}

/// Flags that hvd-bench engine does not have.
void check_replay(const options& o) {
  if (o.types.size() != 1 || o.ops.size() != 1) {
    throw usage_error("hvd-bench engine measures one type (-d) and one reduction (-o) at a time, not all");
  }
  if (o.limit) throw usage_error("--limit has no meaning for engine: its bytes depend on when gradients come");
  if (o.names_earlier()) throw usage_error("--earlier has no meaning for engine: its rows are schedules, not sizes");
  if (o.steady) throw usage_error("--steady has no meaning for engine: all its schedules take turns in one row");
  if (o.state != mode::dirty || o.pace != cadence::isolated) {
    throw usage_error("hvd-bench engine rewrites all gradients before each step; leave out --mode and --streaming");
  }
  if (o.cycles != 1) throw usage_error("-N has no meaning for engine; --iters is the number of steps");
}

/// The defaults of --transport nccl, and errors for flags without a meaning on it. `mode_given`: --mode is on the
/// command line.
void check_nccl(options& o, bool mode_given, bool isolated) {
  const bool on_gpus = o.transport == "nccl";
  for (const peer_option& p : o.peers) {
    const bool bare = p.name == bare_nccl && p.command.empty();
    if (on_gpus && !bare)
      throw usage_error("--peer " + p.name + " has its buffers on the host; with --transport nccl: --peer nccl");
    if (!on_gpus && bare) throw usage_error("--peer nccl has its buffers on GPUs; it takes --transport nccl");
  }
  if (!on_gpus) {
    if (o.ranks_per_gpu != 1) throw usage_error("--ranks-per-gpu takes --transport nccl");
    return;
  }
  if (!mode_given) o.state = mode::clean;
  if (o.state == mode::dirty) {
    throw usage_error("--mode dirty has no meaning with --transport nccl, whose buffers the host does not write; "
                      "allowed: clean, rotating");
  }
  if (!o.algorithm.empty())
    throw usage_error("--algorithm has no meaning with --transport nccl: NCCL chooses (NCCL_ALGO)");
  if (o.limit) throw usage_error("--limit is a loop on the host; leave it out with --transport nccl");
  if (o.names_earlier()) throw usage_error("--earlier knows machines by their CPU; leave it out with --transport nccl");
  if (o.steady) throw usage_error("--steady is about CPUs; leave it out with --transport nccl");
  if (has_model(o.kind)) {
    throw usage_error("hvd-bench " + std::string(name(o.kind)) +
                      " has its gradients on the host; hvd-bench-gpu measures many tensors on GPUs");
  }
  if (!isolated) o.pace = cadence::streaming;
}

/// `sized`: -t or -g is given. 1 times 1 means one rank if neither -n nor a launcher gives a number.
void check(options& o, bool ranks_given, bool sized, int threads, int gpus, int launched) {
  const int each = threads * gpus;
  if (each > 1) {
    if (ranks_given && o.ranks != each) {
      throw usage_error("-n is the number of ranks here (" + std::to_string(o.ranks) + "), which disagrees with -t " +
                        std::to_string(threads) + " times -g " + std::to_string(gpus) +
                        "; the number of iterations is --iters");
    }
    o.ranks = each;
  } else if (!ranks_given) {
    o.ranks = sized || o.transport == "self" || o.transport == "nccl" ? 1 : std::max(2, std::min(host().cpus, 8));
  }
  if (launched != 0) {
    if ((ranks_given || each > 1) && o.ranks != launched) {
      throw usage_error("the launcher has started " + std::to_string(launched) +
                        " ranks, and the command line asks for " + std::to_string(o.ranks) +
                        "; leave out -n, or let hvd-bench start its own ranks");
    }
    o.ranks = launched;
  }
  const int most = 256;
  if (o.ranks > most) {  // of -t times -g, or of a launcher
    throw usage_error(std::to_string(o.ranks) + " ranks are more than hvd-bench measures; allowed: 1 to " +
                      std::to_string(most));
  }
  if (o.transport == "self" && o.ranks != 1) {
    throw usage_error("--transport self has one rank, not " + std::to_string(o.ranks) + "; leave out -n or take shm");
  }
  if (o.step_factor < 2 && o.step_bytes == 0 && o.min_bytes != o.max_bytes) {
    throw usage_error("-i 0 never comes from -b to -e; give a step in bytes, or a factor (-f)");
  }
  constexpr std::size_t most_rows = 10000;
  if (o.step_factor < 2 && o.step_bytes != 0 && (o.max_bytes - o.min_bytes) / o.step_bytes >= most_rows) {
    throw usage_error("-i " + size_text(o.step_bytes) + " from -b " + size_text(o.min_bytes) + " to -e " +
                      size_text(o.max_bytes) + " makes more than " + std::to_string(most_rows) +
                      " sizes; allowed: a larger step (-i), or a factor (-f)");
  }
  if (o.step_factor > 1 && o.min_bytes == 0 && o.max_bytes != 0) {
    throw usage_error("-b 0 times any factor stays 0; begin with at least one byte, or take steps (-i)");
  }
  if (const std::string why = check_algorithm(o.algorithm); !why.empty()) throw usage_error(why);
  if (o.algorithm.size() >= sizeof(job{}.algorithm)) throw usage_error("--algorithm " + o.algorithm + " is too long");
  if (reduces(o.kind) && o.ops.size() == 1 && !has_op(o.kind, o.ops[0])) {
    throw usage_error(std::string(name(o.kind)) + " has no " + std::string(name(o.ops[0])) +
                      ": its ranks reduce different numbers of inputs; allowed with -o: sum, prod, min, max");
  }
  if (reduces(o.kind) && o.types.size() == 1 && o.ops.size() == 1 && !defined(o.types[0], o.ops[0])) {
    throw usage_error(std::string(name(o.ops[0])) + " is not defined for " + std::string(type_name(o.types[0])) +
                      "; see --list");
  }
  if (o.fusion_bytes < 1024 && (o.fusion_bytes != 0 || o.kind == collective::engine)) {
    throw usage_error(o.kind == collective::engine ? "--fusion-bytes must be at least 1K"
                                                   : "--fusion-bytes must be 0 or at least 1K");
  }
  if (!reduces(o.kind)) o.ops = {redop::sum};
  if (o.rounds == 0) o.rounds = o.peers.empty() && !o.limit && o.kind != collective::engine ? 1 : 3;
  if (o.kind == collective::engine) check_replay(o);
}

}  // namespace

std::optional<options> parse_options(int argc, char** argv, int launched) {
  options o;
  for (int i = 0; i != argc; ++i) o.command += (i == 0 ? "" : " ") + std::string(argv[i]);
  CLI::App app{"Measures collectives, as nccl-tests does: time, bandwidth and correctness for each size.", "hvd-bench"};
  app.set_help_flag("-h,--help", "Print this and end");
  app.set_version_flag("--version", std::string("hvd-bench ") + std::string(version));
  app.get_formatter()->column_width(34);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // as getopt

  std::string kind;
  unsigned ranks = 0, factor = 1, threads = 1, gpus = 1, average = 3, warmup = 0, iterations = 0, ranks_per_gpu = 1;
  bool streaming = false, isolated = false, in_only = false, out_only = false, no_pin = false;
  unsigned ignored = 0, stamps = 0, spread = 0;
  std::optional<buffers> memory, registered;
  std::vector<std::string> peers;
  using str = const std::string&;
  Flags flags(app);

  app.add_option("collective", kind, join(collective_names));
  constexpr unsigned million = 1'000'000;
  flags.whole("-n,--ranks", ranks, 1, 256,
              "Ranks to start (default: -t times -g if given, else one for each usable CPU, 2 to 8)");
  flags.whole("-t,--nthreads", threads, 1, 256,
              "As in nccl-tests: -t times -g ranks; more than 1 takes --transport thread");
  flags.whole("-g,--ngpus", gpus, 1, 256, "See -t");
  flags.whole("-w,--warmup_iters", warmup, 0, million, "Calls before timing (default: by size; 5 with --iters)");
  flags.whole("--iters", iterations, 1, million, "Calls that are timed (default: by size)");
  flags.whole("-f,--stepfactor", factor, 1, million, "Factor between sizes, instead of a step");
  flags.whole("-c,--check", o.checks, 0, million, "Checks of each result, 0 for none (default: 1)");
  flags.whole("-N,--run_cycles", o.cycles, 1, million, "Run the whole table this often (default: 1)");
  flags.whole("-a,--average", average, 0, 3, "Over ranks: 0 rank 0, 1 mean, 2 min, 3 max (default: 3)");
  flags.whole("-S,--report_timestamps", stamps, 0, 1, "1: the time of day at the end of each row");
  flags.whole("-I,--report_iterations", spread, 0, 1, "1: minimum, maximum and variation over iterations");
  flags.whole("-u,--unalign", o.unalign, 0, 4096, "Elements by which buffers are off their alignment");
  flags.whole("-p,--parallel_init", ignored, 0, 1, "Accepted: ranks always start in parallel");
  flags.whole("-C,--report_cputime", ignored, 0, 1, "Accepted: ranks are processes on the CPU");
  flags.whole("--rounds", o.rounds, 1, million,
              "Turns of all libraries at each size (default: 1 alone, 3 with others)");
  flags.add("-b,--minbytes", "Smallest size, such as 8, 64K, 1M (default: 32M)",
            [&](str f, str t) { o.min_bytes = size_option(f, t); });
  flags.add("-e,--maxbytes", "Largest size (default: 32M)", [&](str f, str t) { o.max_bytes = size_option(f, t); });
  flags.add("-i,--stepbytes", "Step between sizes (default: 1M)",
            [&](str f, str t) { o.step_bytes = size_option(f, t); });
  flags.add("-o,--op", "sum, prod, min, max, avg, all (default: sum)", [&](str, str t) { o.ops = op_option(t); });
  flags.add("-d,--datatype", "Element type, or all (default: float); see --list",
            [&](str, str t) { o.types = type_option(t); });
  flags.add("-r,--root", "Root, or all (default: 0)");
  flags
      .add("-T,--timeout,--limit-seconds",
           "End a library that takes longer for a cell (default: 80 times --seconds-per-cell, at least 20)",
           [&](str f, str t) { o.limit_seconds = seconds_option(f, t); })
      ->type_name("SECONDS");
  flags
      .add("--seconds-per-cell", "Measuring time for each number (default: 0.25); more of it also allows more calls",
           [&](str f, str t) { o.seconds = seconds_option(f, t); })
      ->type_name("SECONDS");
  app.add_option("-J,--output_file,--json", o.json, "Write the results to this file, as JSON");
  app.add_option("--earlier", o.earlier,
                 "File of --json or of bench/compare: also print hvd's time and the peers' best at the same size there "
                 "(default: the newest in ./bench/results of this machine and these settings; none: no file)");
  flags.add("-R,--local_register", "0: --buffers private; 2: --buffers shared", [&](str, str t) {
    if (t != "0" && t != "2") {
      throw usage_error("-R " + t + " has no meaning here; allowed: 0 (private buffers), 2 (shared buffers)");
    }
    registered = t == "2" ? buffers::shared : buffers::private_;
  });
  flags.neutral("-m,--agg_iters", "1", "calls are not aggregated");
  flags.neutral("-z,--blocking", "0", "calls return when they are done");
  flags.neutral("-y,--stream_null", "0", "there are no CUDA streams");
  flags.neutral("-G,--cudagraph", "0", "there are no CUDA graphs");
  flags.neutral("-x,--cta_policy", "0", "there are no CTAs");
  flags.neutral("-D,--device_implementation", "0", "there is no device code");
  flags.neutral("-V,--device_cta_count", "0", "there are no CTAs");
  flags.neutral("-M,--memory_report", "0", "there is no device memory");
  flags.neutral("-K,--skip", "0", "nothing is skipped");
  flags.add("--transport", join(transport_names) + " (default: shm)", [&](str f, str t) {
    choice_option<std::size_t>(f, transport_names, t);
    o.transport = t;
  });
  flags.whole("--ranks-per-gpu", ranks_per_gpu, 1, 256,
              "With --transport nccl: how many ranks use one GPU (default: 1)");
  app.add_option("--algorithm", o.algorithm, "NAME or NAME:tunable=value,... (default: automatic); see --list");
  flags.add("--buffers", "private or shared (default: private; fused, engine: shared)",
            [&](str f, str t) { memory = choice_option<buffers>(f, buffers_names, t); });
  flags.add("--mode", "dirty, clean or rotating (default: dirty): what a call finds in its buffers",
            [&](str f, str t) { o.state = choice_option<mode>(f, mode_names, t); });
  app.add_flag("--isolated", isolated, "A barrier before each call (default)");
  app.add_flag("--streaming", streaming, "Call after call");
  app.add_flag("--in-place-only", in_only, "Leave out-of-place out");
  app.add_flag("--out-of-place-only", out_only, "Leave in-place out");
  app.add_option("--peer", peers, "NAME or NAME=COMMAND: also measure this library (repeat for more)")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--limit", o.limit, "Also measure a loop that only moves the bytes that must move");
  app.add_flag(
      "--steady", o.steady,
      "Measure a row again, up to 3 times in all, if the cost of a cache line between the ranks' CPUs after it "
      "is not that before it (by a factor of 1.5); print that cost");
  flags.add("--model", "For fused and engine: resnet50 (default) or transformer124m (gpt2)", [&](str f, str t) {
    o.parameters = t == "gpt2" ? model::transformer124m : choice_option<model>(f, model_names, t);
  });
  flags.add(
      "--fusion-bytes",
      "For fused and engine: size of the fusion buffer (default: 4M); for fused also 0: one call for each gradient",
      [&](str f, str t) { o.fusion_bytes = size_option(f, t); });
  add_replay_flags(app, flags, o.passes);
  app.add_flag("--no-pin", no_pin, "Do not pin ranks to CPUs");
  app.add_flag("--explain", o.explain,
               "Print what automatic chooses on -n ranks, by size, from what messages cost; and end");
  app.add_flag("--list", o.list, "Print collectives, types, reductions, algorithms, transports and peers, and end");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    throw usage_error(unknown_words(app.remaining(), argc, argv, kind));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) {
      app.exit(e, std::cout, std::cerr);
      return std::nullopt;
    }
    throw usage_error(std::string(e.what()) + "; hvd-bench --help lists all flags");
  }

  if (o.list) return o;
  if (kind.empty() && !o.explain) {
    throw usage_error("which collective? hvd-bench COLLECTIVE, one of: " + join(collective_names));
  }
  if (!o.explain) o.kind = collective_option(kind);
  flags.read();
  if (o.explain) {
    o.ranks = ranks != 0 ? static_cast<int>(ranks) : 2;
    return o;
  }
  if (o.min_bytes > o.max_bytes) {
    throw usage_error("-b " + size_text(o.min_bytes) + (flags.given("-b") ? "" : " (its default)") + " is beyond -e " +
                      size_text(o.max_bytes) + (flags.given("-e") ? "" : " (its default)") +
                      "; allowed: a smallest size (-b) up to the largest (-e)");
  }
  o.step_factor = factor;
  if (flags.given("--iters")) {
    o.iterations = iterations;
    o.warmup = 5;
  }
  if (flags.given("-w")) o.warmup = warmup;
  if (!flags.given("-T")) o.limit_seconds = std::max(o.limit_seconds, 80 * o.seconds);
  if (flags.given("-T") && flags.given("--seconds-per-cell") && o.limit_seconds < o.seconds) {
    throw usage_error("-T " + flags.text("-T") + " would end a library before --seconds-per-cell " +
                      flags.text("--seconds-per-cell") + " is over; allowed: a limit (-T) of at least that time");
  }
  o.over_ranks = static_cast<averaging>(average);
  o.timestamps = stamps != 0;
  o.spread = spread != 0;
  // A fusion buffer is the library's own to place.
  o.memory = memory.value_or(has_model(o.kind) ? buffers::shared : buffers::private_);
  if (registered && memory && *registered != *memory) {
    throw usage_error("-R " + flags.text("-R") + " disagrees with --buffers " + flags.text("--buffers"));
  }
  o.memory = registered.value_or(o.memory);
  if (streaming && isolated) throw usage_error("--isolated and --streaming exclude each other");
  if (streaming) o.pace = cadence::streaming;
  if (in_only && out_only) throw usage_error("--in-place-only and --out-of-place-only leave nothing to measure");
  o.out_of_place = !in_only;
  o.in_place = !out_only;
  if (in_only && !works_in_place(o.kind)) throw usage_error(std::string(name(o.kind)) + " does not work in place");
  o.pin = !no_pin;
  if (!flags.given("--transport") && threads > 1) o.transport = "thread";
  o.ranks_per_gpu = static_cast<int>(ranks_per_gpu);
  o.ranks = static_cast<int>(ranks);
  for (const std::string& p : peers) {
    peer_option peer = peer_of(p);
    const bool taken = peer.name == "hvd" || peer.name == "limit" ||
                       std::any_of(o.peers.begin(), o.peers.end(), [&](const auto& q) { return q.name == peer.name; });
    if (taken) throw usage_error("there are two libraries " + peer.name + "; give --peer another name before the =");
    o.peers.push_back(std::move(peer));
  }
  if (const char* const least = std::getenv("NCCL_TESTS_MIN_BW")) {
    char* rest = nullptr;
    o.min_bandwidth = std::strtod(least, &rest);
    if (rest == least || *rest != '\0' || o.min_bandwidth < 0) {
      throw usage_error(std::string("NCCL_TESTS_MIN_BW is \"") + least + "\"; expected a bandwidth in GB/s");
    }
  }
  check_nccl(o, flags.given("--mode"), isolated);
  const bool sized = flags.given("-t") || flags.given("-g");
  check(o, flags.given("-n"), sized, static_cast<int>(threads), static_cast<int>(gpus), launched);
  const std::string root = flags.given("-r") ? flags.text("-r") : "0";
  if (root == "all") {
    o.roots.clear();
    for (int r = 0; r != (has_root(o.kind) ? o.ranks : 1); ++r) o.roots.push_back(r);
  } else {
    char* rest = nullptr;
    const long r = std::strtol(root.c_str(), &rest, 10);
    if (root.empty() || *rest != '\0' || r < 0 || r >= o.ranks) {
      throw usage_error("-r " + root + " is not a rank; allowed: 0 to " + std::to_string(o.ranks - 1) + ", all");
    }
    o.roots = {has_root(o.kind) ? static_cast<int>(r) : 0};
  }
  return o;
}

}  // namespace hvd::bench
