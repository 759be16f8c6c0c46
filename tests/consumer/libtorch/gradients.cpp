// Gradients of libtorch over ranks. Prints lines that must be the same on all ranks and for every number of ranks;
// where arithmetic is exact, as here: small whole numbers in float64, factors of two.
#include <hvd/torch.hpp>

#include <hvd/allgather.hpp>
#include <hvd/engine.hpp>
#include <hvd/fusion.hpp>
#include <hvd/transport/shm.hpp>

#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

static_assert(hvd::dtype_of<c10::Half> == hvd::dtype::float16);
static_assert(hvd::dtype_of<at::BFloat16> == hvd::dtype::bfloat16);
static_assert(hvd::dtype_of<c10::complex<float>> == hvd::dtype::complex64);
static_assert(hvd::dtype_of<const c10::complex<double>> == hvd::dtype::complex128);

namespace {

using hvd::ShmTransport;
using engine_type = hvd::Engine<ShmTransport>;
using named_parameters = std::vector<std::pair<std::string, torch::Tensor>>;
constexpr std::int64_t images = 8, inputs = 5, outputs = 3;

void require(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("wrong: " + what);
}

/// Throws unless `f` throws an hvd::error of this kind with these words.
void refused(hvd::error_kind kind, const std::vector<std::string>& words, const std::function<void()>& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    const std::string said = e.what();
    require(e.kind() == kind, said);
    for (const std::string& word : words) require(said.find(word) != std::string::npos, said + " without: " + word);
    return;
  }
  throw std::runtime_error("no error that says " + words.at(0));
}

/// What all ranks and all numbers of ranks must print.
void print(const std::string& what, const std::vector<torch::Tensor>& tensors) {
  std::printf("%s:", what.c_str());
  for (const torch::Tensor& t : tensors) {
    const torch::Tensor values = t.detach().to(torch::kFloat64).contiguous().view(-1);
    for (std::int64_t i = 0; i != values.numel(); ++i) std::printf(" %a", values[i].item<double>());
  }
  std::printf("\n");
}

torch::Tensor whole_numbers(at::IntArrayRef shape, std::int64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return torch::arange(count, torch::kFloat64).mul(7 + 2 * seed).add(seed).remainder(9).sub(4).view(shape);
}

struct net : torch::nn::Module {
  net() {
    first = register_parameter("first", whole_numbers({outputs, inputs}, 1));
    second = register_parameter("second", whole_numbers({outputs}, 2));
    // Dense in another order: its gradient follows.
    turned = register_parameter("turned", whole_numbers({outputs, inputs}, 3).t());
    frozen = register_parameter("frozen", torch::ones({2}), false);
    empty = register_parameter("empty", torch::ones({0}));
  }
  torch::Tensor loss(const torch::Tensor& x, bool use_second = true) const {
    torch::Tensor y = x.matmul(first.t()) + x.matmul(turned);
    if (use_second) y = y + second;
    return (y * y).sum() / 2;
  }
  torch::Tensor first, second, turned, frozen, empty;
};

/// The part of all images that is this rank's, as torch::Tensor::chunk would give it.
torch::Tensor part(const ShmTransport& comm, const torch::Tensor& all) {
  const std::int64_t each = all.size(0) / comm.size();
  return all.slice(0, each * comm.rank(), each * (comm.rank() + 1));
}

enum class clear { by_gradients, in_place, to_none };

/// Some steps on all images; the average of gradients that are `size` times as large is that of all images.
void train(ShmTransport& comm, engine_type& engine, const std::string& what, clear how, hvd::gradient_options options) {
  net model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0x1p-9));
  const int passes = options.backward_passes_per_step;
  hvd::DistributedGradients gradients(engine, model.named_parameters(), std::move(options));
  require(!model.frozen.grad().defined(), "a parameter without requires_grad has no gradient");
  const void* const place = model.first.grad().defined() ? model.first.grad().data_ptr() : nullptr;
  for (int step = 0; step != 4; ++step) {
    if (how == clear::by_gradients) gradients.zero_grad();
    if (how != clear::by_gradients) optimizer.zero_grad(how == clear::to_none);
    const torch::Tensor mine = part(comm, whole_numbers({images, inputs}, step + 4));
    // In two steps the last images do not use one parameter: with two ranks, none of the second rank's.
    const bool partly = step == 1 || step == 2;
    const auto halves = mine.chunk(2);
    const bool last_rank = comm.rank() + 1 == comm.size();
    const torch::Tensor one = model.loss(halves[0], !(partly && last_rank && comm.size() > 1)) * comm.size();
    const torch::Tensor two = model.loss(halves[1], !(partly && last_rank)) * comm.size();
    if (passes == 1) {
      (one + two).backward();
    } else {
      one.backward();
      two.backward();
    }
    gradients.synchronize();
    require(model.second.grad().defined(), "an unused parameter has a gradient");
    if (how != clear::to_none && place != nullptr) {
      require(model.first.grad().data_ptr() == place, "the gradient stays in its place");
    }
    optimizer.step();
  }
  print(what, {model.first, model.second, model.turned, model.first.grad(), model.second.grad(), model.turned.grad()});
}

void lists(ShmTransport& comm) {
  net model;
  for (torch::Tensor& p : model.parameters()) p.data().add_(comm.rank());
  hvd::broadcast(comm, hvd::tensors(model.parameters()));
  const std::vector<torch::Tensor> all = model.parameters();
  print("broadcast", {all.at(0), all.at(1), all.at(2)});
  torch::Tensor a = torch::ones({3}, torch::kHalf), b = torch::ones({2, 2}, torch::kBFloat16),
                c = torch::ones({2}, torch::kComplexFloat);
  hvd::allreduce(comm, hvd::tensors(a, b), hvd::average);
  hvd::allreduce(comm, hvd::tensor_list().add(hvd::view_of(c)), hvd::average);
  print("allreduce", {a, b, torch::view_as_real(c)});
  require(hvd::torch_dtype(torch::kInt64) == hvd::dtype::int64 &&
              hvd::torch_dtype(torch::kBool) == hvd::dtype::boolean &&
              hvd::torch_dtype(torch::kUInt16) == hvd::dtype::uint16,
          "torch_dtype");
}

void refuses_tensors() {
  const auto invalid = hvd::error::invalid_argument;
  const torch::Tensor t = torch::ones({4, 4});
  refused(invalid, {"is not contiguous", "pass .contiguous()"}, [&] { hvd::view_of(t.slice(1, 0, 2)); });
  refused(invalid, {"is not contiguous"}, [&] { hvd::view_of(torch::ones({1}).expand({3})); });
  refused(invalid, {"is sparse", "pass .to_dense()"}, [&] { (void)hvd::tensors(t.to_sparse()); });
  refused(invalid, {"is undefined"}, [&] { hvd::view_of(torch::Tensor()); });
  refused(invalid, {"is on device meta", "pass .cpu()"}, [&] { hvd::view_of(t.to(torch::kMeta)); });
  refused(invalid, {".resolve_conj()"}, [&] { hvd::view_of(torch::ones({2}, torch::kComplexFloat).conj()); });
  refused(hvd::error::unsupported, {"hvd does not support elements of type", "ComplexHalf", ".to(at::kFloat)"},
          [&] { hvd::view_of(torch::empty({2}, torch::kComplexHalf)); });
  refused(hvd::error::unsupported, {"Float8"}, [&] { hvd::torch_dtype(torch::kFloat8_e4m3fn); });
}

void refuses_gradients(ShmTransport& comm, engine_type& engine) {
  const auto invalid = hvd::error::invalid_argument;
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  hvd::gradient_options how;
  how.bytes_together = 0;
  {
    hvd::DistributedGradients gradients(engine, table->named_parameters(), how);
    table->weight.mutable_grad() = torch::Tensor();
    const auto backward = [&] { table->forward(torch::tensor({1, 2})).sum().backward(); };
    refused(invalid, {"the gradient of weight is sparse", ".to_dense()"}, backward);
    refused(invalid, {"the gradient of weight is sparse"}, [&] { gradients.synchronize(); });
  }
  net model;
  {
    hvd::DistributedGradients gradients(engine, model.named_parameters());
    const torch::Tensor x = whole_numbers({2, inputs}, 0);
    model.loss(x).backward();
    refused(invalid, {"is being reduced", "synchronize()"}, [&] { gradients.zero_grad(); });
    refused(invalid, {"was computed again before synchronize()", "backward_passes_per_step"},
            [&] { model.loss(x).backward(); });
    gradients.synchronize();
    gradients.zero_grad();
  }
  how.backward_passes_per_step = 0;
  refused(invalid, {"backward_passes_per_step is 0"},
          [&] { hvd::DistributedGradients(engine, model.named_parameters(), how); });
  refused(invalid, {"parameter sum was computed"}, [&] {
    hvd::DistributedGradients(engine, named_parameters{{"sum", model.first + model.first}});
  });
  if (comm.size() == 1) return;
  refused(hvd::error::mismatch, {"rank 1 has different parameters or options from rank 0"}, [&] {
    const std::string other = comm.rank() == 1 ? "b" : "a";
    hvd::DistributedGradients(engine, named_parameters{{other, torch::ones({2}).requires_grad_()}});
  });
}

/// A gradient that the user puts there, in another order of dimensions than its parameter.
void other_order(ShmTransport& comm, engine_type& engine) {
  for (const bool buckets : {true, false}) {
    torch::Tensor p = whole_numbers({2, 3}, 1).requires_grad_();
    hvd::gradient_options how;
    how.buckets = buckets;
    hvd::DistributedGradients gradients(engine, named_parameters{{"p", p}, {"the same", p}, {"none", {}}}, how);
    p.mutable_grad() = comm.rank() == 0 ? torch::zeros({3, 2}, torch::kFloat64).t() : torch::zeros_like(p);
    (p * whole_numbers({2, 3}, 2)).sum().backward();
    gradients.synchronize();
    print("other order", {p.grad()});
  }
}

void wire(engine_type& engine) {
  torch::Tensor p = torch::ones({3}, torch::requires_grad());
  hvd::gradient_options how;
  how.op = hvd::scaled(hvd::average, 0.5);
  how.wire = hvd::dtype::bfloat16;
  hvd::DistributedGradients gradients(engine, named_parameters{{"p", p}}, how);
  (p * 3).sum().backward();
  gradients.synchronize();
  print("wire", {p.grad()});
}

/// Reductions begin in the backward pass: they end also if nobody waits.
void begins(ShmTransport& comm, engine_type& engine) {
  torch::Tensor p = torch::ones({1}, torch::requires_grad());
  hvd::gradient_options how;
  how.op = hvd::sum;
  how.bytes_together = 0;
  hvd::DistributedGradients gradients(engine, named_parameters{{"p", p}}, how);
  (p * (comm.rank() + 1)).sum().backward();
  const auto sum = static_cast<float>(comm.size() * (comm.size() + 1) / 2);
  const volatile float* const value = p.grad().data_ptr<float>();
  for (int i = 0; i != 5000 && *value != sum; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  require(*value == sum, "the gradient is reduced before synchronize()");
  gradients.synchronize();
}

void ends(ShmTransport& comm) {
  net model;
  const torch::Tensor x = whole_numbers({2, inputs}, comm.rank());
  std::optional<engine_type> engine(std::in_place, comm);
  {
    hvd::DistributedGradients first(*engine, model.named_parameters());
    model.loss(x).backward();  // nobody waits for it
  }
  model.loss(x).backward();  // nobody listens any more
  model.zero_grad();
  std::optional<hvd::DistributedGradients> second(std::in_place, *engine, model.named_parameters());
  model.loss(x).backward();
  second->synchronize();
  const torch::Tensor kept = model.first.grad();
  const torch::Tensor copy = kept.clone();
  engine.reset();
  second.reset();
  require(kept.equal(copy), "gradients outlive the engine");
  model.loss(x).backward();
  require(!kept.equal(copy), "and are written to as others");
}

/// libtorch makes the gradient of `position` a view of what the backward pass of the product reads after that. Here
/// this backward pass waits, so that a reduction of the view would be complete before.
void views(ShmTransport& comm, engine_type& engine) {
  for (const bool buckets : {true, false}) {
    torch::Tensor scale = torch::ones({4}, torch::kFloat64).requires_grad_();
    torch::Tensor position = torch::zeros({1, 4}, torch::kFloat64).requires_grad_();
    hvd::DistributedGradients gradients(engine, named_parameters{{"scale", scale}, {"position", position}},
                                        {.buckets = buckets, .bytes_together = 0, .prefix = "views."});
    scale.mutable_grad() = torch::Tensor();
    position.mutable_grad() = torch::Tensor();
    // Rank r has r + 1 as the gradient of `position`, and its square as that of `scale`.
    const torch::Tensor factor = torch::full({4}, comm.rank() + 1.0, torch::kFloat64);
    const torch::Tensor product = scale * factor;
    product.register_hook([](const torch::Tensor&) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
    ((product + position.view({4})) * factor).sum().backward();
    gradients.synchronize();
    const double ranks = comm.size(), mean = (ranks + 1) / 2, of_squares = (ranks + 1) * (2 * ranks + 1) / 6;
    require(scale.grad().equal(torch::full({4}, of_squares, torch::kFloat64)),
            "a gradient that shared memory with another");
    require(position.grad().equal(torch::full({1, 4}, mean, torch::kFloat64)), "a gradient that is a view");
  }
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    ShmTransport comm = ShmTransport::from_environment();
    lists(comm);
    refuses_tensors();
    {
      engine_type engine(comm);
      using named_way = std::pair<std::string, clear>;
      for (const auto& [name, how] :
           {named_way("zero_grad", clear::by_gradients), named_way("zeroed in place", clear::in_place),
            named_way("set to None", clear::to_none)}) {
        for (const bool buckets : {true, false}) {
          for (const std::size_t together : {std::size_t{0}, std::size_t{100}, std::size_t{1} << 20}) {
            for (const int passes : {1, 2}) {
              hvd::gradient_options options;
              options.buckets = buckets;
              options.bytes_together = together;
              options.backward_passes_per_step = passes;
              train(comm, engine, "trained", how, std::move(options));
            }
          }
        }
      }
      refuses_gradients(comm, engine);
      other_order(comm, engine);
      wire(engine);
      begins(comm, engine);
      views(comm, engine);
    }
    ends(comm);
    std::puts("done");
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gradients: %s\n", e.what());
    return 1;
  }
}
