// bench/engine.cpp: who runs which schedule when, and what that says.
#include <bench/engine.hpp>

#include <bench/gradients.hpp>
#include <bench/inputs.hpp>
#include <bench/libraries.hpp>
#include <bench/result_file.hpp>
#include <bench/settings.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <system_error>

namespace hvd::bench {
namespace {

using json = nlohmann::ordered_json;
constexpr unsigned default_steps = 30, default_warmup = 2, latency_calls = 2000, latency_warmup = 200;

/// A folder for timelines, which goes with it.
class scratch {
 public:
  scratch() {
    path_ = (std::filesystem::temp_directory_path() / "hvd-bench-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder for timelines, " + path_ + ": " + std::strerror(errno));
    }
  }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  [[nodiscard]] std::string file() const { return path_ + "/timeline.json"; }

 private:
  std::string path_;
};

/// One line of the table. Times in us.
struct cell {
  std::size_t library;
  schedule what;
  bool traced;
  std::vector<double> steps{}, exposed{};
  std::optional<std::uint64_t> wrong{};
  std::string error{};
  timing step{}, beyond{};  // summaries, at the end
};

class engine_run {
 public:
  engine_run(const options& o, std::vector<std::unique_ptr<Library>>& libraries)
      : o_(o), libraries_(libraries), all_(gradients_in(o.parameters)) {
    job_.kind = collective::engine;
    job_.type = o.types[0];
    job_.op = o.ops[0];
    job_.memory = o.memory;
    job_.count = parameters();
    job_.parameters = o.parameters;
    job_.fusion_bytes = o.fusion_bytes;
    job_.passes = o.passes;
    std::strncpy(job_.algorithm, o.algorithm.c_str(), sizeof job_.algorithm - 1);
    for (std::size_t l = 0; l != libraries.size(); ++l) {
      if (l == 0) cells.push_back({l, schedule::engine, false});
      if (l == 0) cells.push_back({l, schedule::engine, true});
      for (const schedule s : {schedule::each, schedule::each_after, schedule::fused_after}) {
        cells.push_back({l, s, false});
      }
    }
  }

  /// The table: all rounds, then the checks.
  void measure() {
    const unsigned steps = o_.iterations.value_or(default_steps);
    for (unsigned round = 0; round != o_.rounds; ++round) {
      job j = job_;
      j.passes.seed += round;
      j.warmup = o_.warmup.value_or(default_warmup);
      j.iterations = std::max(1U, (steps + o_.rounds - 1) / o_.rounds);
      std::vector<double> backward;
      for (cell& c : cells) {
        const job_result r = submit(c, j);
        while (backward.size() < r.samples.size()) {
          backward.push_back(1e6 * slowest_pass(all_, j.passes, o_.ranks, backward.size()));
        }
        for (std::size_t i = 0; i != r.samples.size(); ++i) {
          c.steps.push_back(r.samples[i]);
          c.exposed.push_back(r.samples[i] - backward[i]);
        }
        c.step = summarise(c.steps);
        c.beyond = summarise(c.exposed);
      }
    }
    for (cell& c : cells) {
      if (o_.checks == 0 || c.steps.empty() || !verifiable(job_.type, job_.op, o_.ranks)) continue;
      job j = job_;
      j.check = true;
      j.iterations = o_.checks;
      const job_result r = submit(c, j);
      if (r.state == outcome::done) c.wrong = r.wrong;
    }
  }

  void measure_engine_alone() {
    job j = job_;
    j.type = dtype::float32;
    j.op = redop::sum;
    j.passes.what = schedule::latency;
    j.warmup = latency_warmup;
    j.iterations = latency_calls;
    latency = summarise(done(libraries_[0]->run(j)).samples);
    if (o_.passes.idle_seconds <= 0) return;
    j.passes.what = schedule::idle;
    j.iterations = 2;
    const job_result r = done(libraries_[0]->run(j));
    idle_cpu = r.samples.at(0) * 1e-6 / o_.passes.idle_seconds;
    idle_woken = static_cast<std::uint64_t>(r.samples.at(1));
  }

  [[nodiscard]] std::size_t parameters() const {
    return std::accumulate(all_.begin(), all_.end(), std::size_t{0},
                           [](std::size_t n, const gradient& g) { return n + g.count; });
  }
  [[nodiscard]] std::size_t gradients() const { return all_.size(); }
  [[nodiscard]] const cell& find(std::size_t library, schedule what, bool traced) const {
    return *std::find_if(cells.begin(), cells.end(),
                         [&](const cell& c) { return c.library == library && c.what == what && c.traced == traced; });
  }
  /// The peers' cell with the shortest step among these schedules; null if there is none.
  [[nodiscard]] const cell* best_peer(std::initializer_list<schedule> among) const {
    const cell* best = nullptr;
    for (const cell& c : cells) {
      const bool wanted = std::find(among.begin(), among.end(), c.what) != among.end();
      if (c.library == 0 || !wanted || c.steps.empty()) continue;
      if (best == nullptr || c.step.median < best->step.median) best = &c;
    }
    return best;
  }
  [[nodiscard]] bool has_steps() const {
    return std::any_of(cells.begin(), cells.end(), [](const cell& c) { return !c.steps.empty(); });
  }
  /// Whether hvd gave every number.
  [[nodiscard]] bool whole() const {
    return std::all_of(cells.begin(), cells.end(), [](const cell& c) { return c.library != 0 || c.error.empty(); });
  }
  [[nodiscard]] std::uint64_t wrong() const {
    return std::accumulate(cells.begin(), cells.end(), std::uint64_t{0},
                           [](std::uint64_t n, const cell& c) { return n + c.wrong.value_or(0); });
  }

  std::vector<cell> cells;
  timing latency;
  std::optional<double> idle_cpu;  ///< CPU seconds of all ranks for each second
  std::uint64_t idle_woken = 0;

 private:
  job_result submit(cell& c, job j) {
    if (!c.error.empty()) return {};
    Library& library = *libraries_[c.library];
    if (library.description().empty()) {  // never ran; the head of the table says why
      c.error = library.missing();
      return {};
    }
    j.passes.what = c.what;
    if (c.traced) std::strncpy(j.passes.timeline, folder_.file().c_str(), sizeof j.passes.timeline - 1);
    job_result r = library.run(j);
    if (r.state == outcome::done) return r;
    c.error = r.problem;
    return {};
  }
  static job_result done(job_result r) {
    if (r.state != outcome::done) throw std::runtime_error("hvd's engine: " + r.problem);
    return r;
  }

  const options& o_;
  std::vector<std::unique_ptr<Library>>& libraries_;
  scratch folder_;
  std::vector<gradient> all_;
  job job_;
};

std::string label(const cell& c) { return std::string(name(c.what)) + (c.traced ? "+timeline" : ""); }

void print_head(const options& o, const machine& m, const engine_run& run,
                const std::vector<std::unique_ptr<Library>>& libraries) {
  const double megabytes = static_cast<double>(run.parameters() * hvd::size_of(o.types[0])) * 1e-6;
  std::printf("# hvd-bench version %s\n", std::string(version).c_str());
  std::printf("# engine: %d ranks, transport %s, %s: %zu gradients with %zu elements, %.1f MB of %s, %s\n", o.ranks,
              o.transport.c_str(), std::string(name(o.parameters)).c_str(), run.gradients(), run.parameters(),
              megabytes, std::string(type_name(o.types[0])).c_str(), std::string(name(o.ops[0])).c_str());
  std::printf(
      "# backward pass: %g ms on %s, jitter %g %%, any of %u next, seed %llu; fusion buffer of calls: %zu bytes\n",
      o.passes.backward_seconds * 1e3, o.passes.on_cpu ? "the rank's CPU" : "an accelerator", o.passes.jitter * 1e2,
      o.passes.window, static_cast<unsigned long long>(o.passes.seed), o.fusion_bytes);
  std::printf(
      "# step: from its begin to the last gradient reduced, %s; exposed: what of it is after the backward pass of\n"
      "# the slowest rank\n",
      std::string(averaging_names[static_cast<int>(o.over_ranks)]).c_str());
  print_where(o, m, lines_of(libraries), libraries[0]->ranks());
  std::printf("#\n# %12s  %16s  %9s  %9s  %9s  %9s  %6s\n", "library", "schedule", "step", "p99", "exposed", "p99",
              "#wrong");
  std::printf("# %12s  %16s  %9s  %9s  %9s  %9s  %6s\n", "", "", "(ms)", "(ms)", "(ms)", "(ms)", "");
  std::fflush(stdout);
}

void print(const engine_run& run, const options& o, const std::vector<library_line>& lines,
           const std::string& interruption) {
  if (!interruption.empty()) std::printf("# Interrupted by %s: not all was measured\n", interruption.c_str());
  for (const cell& c : run.cells) {
    if (c.steps.empty()) {
      if (c.error != lines[c.library].missing) {
        std::printf("# %s, %s: %s\n", lines[c.library].name.c_str(), label(c).c_str(), c.error.c_str());
      }
      continue;
    }
    std::printf("%14s  %16s  %9.3f  %9.3f  %9.3f  %9.3f  %6s\n", lines[c.library].name.c_str(), label(c).c_str(),
                c.step.median * 1e-3, c.step.p99 * 1e-3, c.beyond.median * 1e-3, c.beyond.p99 * 1e-3,
                c.wrong ? std::to_string(*c.wrong).c_str() : "N/A");
  }
  const cell &plain = run.find(0, schedule::engine, false), &traced = run.find(0, schedule::engine, true);
  std::printf("#\n");
  const auto against = [&](const char* what, const cell* peer) {
    if (peer == nullptr || plain.steps.empty()) return;
    std::printf("# Best peer, %-24s: %s, %s: step %.2f times the engine's, exposed %.2f times\n", what,
                lines[peer->library].name.c_str(), label(*peer).c_str(), peer->step.median / plain.step.median,
                peer->beyond.median / plain.beyond.median);
  };
  against("a call for each tensor", run.best_peer({schedule::each, schedule::each_after}));
  against("fused, after", run.best_peer({schedule::fused_after}));
  if (!plain.steps.empty() && !traced.steps.empty()) {
    std::printf("# Timeline on against off             : a step takes %.2f %% of the time\n",
                100 * traced.step.median / plain.step.median);
  }
  if (run.latency.iterations != 0) {
    std::printf("# 8 bytes by name, from submit to done : %.2f us, p99 %.2f us\n", run.latency.median, run.latency.p99);
  }
  if (run.idle_cpu) {
    std::printf("# Idle, all ranks together, for %4g s  : %.4f %% of a core, %llu wake-ups\n", o.passes.idle_seconds,
                100 * *run.idle_cpu, static_cast<unsigned long long>(run.idle_woken));
  }
  const bool checked =
      std::any_of(run.cells.begin(), run.cells.end(), [](const cell& c) { return c.wrong.has_value(); });
  std::printf("# Out of bounds values : %llu %s\n#\n", static_cast<unsigned long long>(run.wrong()),
              run.wrong() != 0 ? "FAILED"
              : checked        ? "OK"
                               : "(nothing was checked)");
  std::fflush(stdout);
}

json json_of(const timing& t) {
  return {{"median", t.median}, {"p99", t.p99},   {"min", t.least},
          {"max", t.most},      {"mean", t.mean}, {"iterations", t.iterations}};
}

json json_of(const engine_run& run, const options& o, const machine& m, const std::vector<library_line>& lines,
             const std::vector<rank_line>& ranks, const std::string& interruption) {
  json all;
  all["config"] = settings_of(o, m);
  add_where(all, m, lines, ranks);
  all["results"] = json::array();
  for (const cell& c : run.cells) {
    all["results"].push_back({{"library", lines[c.library].name},
                              {"schedule", name(c.what)},
                              {"timeline", c.traced},
                              {"step", c.steps.empty() ? json() : json_of(c.step)},
                              {"exposed", c.steps.empty() ? json() : json_of(c.beyond)},
                              {"nwrong", c.wrong ? json(*c.wrong) : json()},
                              {"error", c.error.empty() ? json() : json(c.error)}});
  }
  all["latency"] = run.latency.iterations == 0 ? json() : json_of(run.latency);
  all["idle"] = run.idle_cpu ? json{{"cpu", *run.idle_cpu}, {"woken", run.idle_woken}} : json();
  all["out_of_bounds"] = run.wrong();
  all["interrupted"] = interruption.empty() ? json() : json(interruption);
  return all;
}

}  // namespace

int run_engine(const options& o, const std::optional<launched>& inside) {
  const machine m = machine::of_this_process();
  if (!o.json.empty()) check_result_file(o.json);
  check_memory(o, 1 + o.peers.size());
  if (inside) check_launched(*inside, o);
  if (inside && inside->rank > 0) {
    return serve_launched(*inside, {o.transport, o.algorithm, inside->key}, cpu_list(o, m));
  }
  options with_time = o;  // to stay idle, too
  with_time.limit_seconds = std::max(o.limit_seconds, o.passes.idle_seconds + 20);
  std::vector<std::unique_ptr<Library>> libraries = start_libraries(with_time, m, inside);
  const std::vector<rank_line> ranks = libraries[0]->ranks();
  engine_run run(o, libraries);
  print_head(o, m, run, libraries);
  int signal = 0;
  try {
    run.measure();
    if (run.whole()) run.measure_engine_alone();
  } catch (const interrupted& e) {
    signal = e.signal;
  }
  const std::string interruption = signal == 0 ? "" : signal_name(signal);
  const std::vector<library_line> lines = lines_of(libraries);
  for (const auto& l : libraries) l->stop();
  print(run, o, lines, interruption);
  const bool keeps = !o.json.empty() && (signal == 0 || run.has_steps());
  if (keeps) write_result_file(o.json, json_of(run, o, m, lines, ranks, interruption));
  if (signal != 0) throw interrupted(signal, keeps ? "; " + o.json + " has what was measured until then" : "");
  return say_missing(lines) && run.whole() && run.wrong() == 0 ? 0 : 1;
}

}  // namespace hvd::bench
