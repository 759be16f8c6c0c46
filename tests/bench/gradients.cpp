// tests/bench/gradients.cpp: the lists against what is known of the models, and passes against their description.
#include <bench/cases/gradients.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

using namespace hvd::bench;

namespace {

const gradient& named(const std::vector<gradient>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const gradient& g) { return g.name == name; });
  REQUIRE_MESSAGE(found != all.end(), name);
  return *found;
}

std::size_t elements(const std::vector<gradient>& all) {
  std::size_t sum = 0;
  for (const gradient& g : all) sum += g.count;
  return sum;
}

using shape = std::vector<std::size_t>;

}  // namespace

TEST_CASE("ResNet-50") {
  const std::vector<gradient> all = gradients_in(model::resnet50);
  CHECK(all.size() == 161);
  CHECK(elements(all) == 25557032);
  CHECK(all[0].name == "fc.bias");
  CHECK(all[1].name == "fc.weight");
  CHECK(all[2].name == "layer4.2.bn3.bias");
  CHECK(all[4].name == "layer4.2.conv3.weight");
  CHECK(all[160].name == "conv1.weight");
  CHECK(named(all, "layer2.0.downsample.0.weight").shape == shape{512, 256, 1, 1});
  CHECK(named(all, "layer4.2.conv2.weight").shape == shape{512, 512, 3, 3});
  CHECK(named(all, "layer1.0.conv1.weight").shape == shape{64, 64, 1, 1});
  // The first layer has a share of 2 for each of 7 * 7 * 3 * 64 * 112 * 112 multiply-adds, all others of 4: with the
  // 4.089 * 10^9 that the model is known for, and 8 for each of the 11.1 * 10^6 elements that are normalised.
  const double total = 4.0 * 2048 * 1000 / all[0].share, first = 7.0 * 7 * 3 * 64 * 112 * 112;
  CHECK(total == doctest::Approx(4 * 4.089e9 - 2 * first + 8 * 11.1e6).epsilon(0.001));
}

TEST_CASE("GPT-2 with 124 M parameters") {
  const std::vector<gradient> all = gradients_in(model::transformer124m);
  CHECK(all.size() == 148);
  CHECK(elements(all) == 124439808);
  CHECK(all[0].name == "transformer.ln_f.bias");
  CHECK(all[2].name == "transformer.h.11.mlp.c_proj.bias");
  CHECK(all[147].name == "transformer.wte.weight");
  CHECK(named(all, "transformer.h.3.attn.c_attn.weight").shape == shape{768, 2304});
  CHECK(named(all, "transformer.h.0.mlp.c_proj.weight").shape == shape{3072, 768});
  CHECK(named(all, "transformer.wpe.weight").shape == shape{1024, 768});
  // The head before all others, and next to nothing for the embedding at the end.
  CHECK(all[0].share > 0.2);
  CHECK(all[147].share < 1e-4);
}

TEST_CASE("both lists: unique names, shares of one whole, one share for each layer") {
  for (const model m : {model::resnet50, model::transformer124m}) {
    const std::vector<gradient> all = gradients_in(m);
    std::set<std::string> names;
    double sum = 0;
    for (const gradient& g : all) {
      names.insert(g.name);
      sum += g.share;
      std::size_t product = 1;
      for (const std::size_t n : g.shape) product *= n;
      CHECK(g.count == product);
    }
    CHECK(names.size() == all.size());
    CHECK(sum == doctest::Approx(1).epsilon(1e-12));
    CHECK(elements(all) == parameters_of(m));
    CHECK(all[0].share > 0);
    CHECK(all[1].share == 0);  // it comes with the one before
  }
}

TEST_CASE("without jitter and in order a pass is its shares") {
  const std::vector<gradient> all = gradients_in(model::resnet50);
  replay how;
  how.backward_seconds = 2;
  how.jitter = 0;
  how.window = 1;
  const backward_pass pass = pass_of(all, how, 3, 4);
  REQUIRE(pass.arrivals.size() == all.size());
  double before = 0;
  for (std::size_t i = 0; i != all.size(); ++i) {
    CHECK(pass.arrivals[i].gradient == i);
    CHECK(pass.arrivals[i].seconds - before == doctest::Approx(2 * all[i].share));
    before = pass.arrivals[i].seconds;
  }
  CHECK(pass.seconds() == doctest::Approx(2));
  CHECK(slowest_pass(all, how, 4, 4) == doctest::Approx(2));
}

TEST_CASE("order and times: every gradient once, within the window, later and later") {
  const std::vector<gradient> all = gradients_in(model::transformer124m);
  replay how;
  how.window = 5;
  how.jitter = 0.3;
  double slowest = 0;
  for (int rank = 0; rank != 3; ++rank) {
    const backward_pass pass = pass_of(all, how, rank, 9);
    std::vector<bool> seen(all.size());
    std::size_t first = 0;  // that has not come
    double before = 0;
    for (const auto& [g, seconds] : pass.arrivals) {
      REQUIRE(g < all.size());
      CHECK(!seen[g]);
      // Any of the first five that have not come: fewer than five before it are missing.
      std::size_t missing = 0;
      for (std::size_t i = first; i < g; ++i) missing += !seen[i];
      CHECK(missing < how.window);
      seen[g] = true;
      while (first != all.size() && seen[first]) ++first;
      CHECK(seconds >= before);
      before = seconds;
    }
    CHECK(first == all.size());
    CHECK(pass.seconds() > how.backward_seconds * 0.7 * 0.7);
    CHECK(pass.seconds() < how.backward_seconds * 1.3 * 1.3);
    slowest = std::max(slowest, pass.seconds());
  }
  CHECK(slowest_pass(all, how, 3, 9) == slowest);
}

TEST_CASE("equal seeds give equal passes; ranks, steps and seeds differ") {
  const std::vector<gradient> all = gradients_in(model::resnet50);
  replay how;
  const auto order = [&](int rank, std::uint64_t step) {
    std::vector<std::size_t> places;
    for (const auto& a : pass_of(all, how, rank, step).arrivals) places.push_back(a.gradient);
    return places;
  };
  const std::vector<std::size_t> one = order(0, 0);
  CHECK(one == order(0, 0));
  CHECK(one != order(1, 0));
  CHECK(one != order(0, 1));
  how.seed = 2;
  CHECK(one != order(0, 0));
  how.seed = 1;
  CHECK(std::vector<std::size_t>(one.begin(), one.begin() + 6) == std::vector<std::size_t>{1, 0, 5, 6, 3, 7});
}
