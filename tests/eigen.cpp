// tests/eigen.cpp: Eigen's dense types as buffers. (What is refused at compile time: tests/compile_fail.)
#include <hvd/eigen.hpp>

#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/send_recv.hpp>
#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <complex>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

using namespace hvd::test;

namespace {

using row_major = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Whether as_span has the elements of `m`, in the order of memory.
template <class M>
bool spans(M&& m) {
  const auto s = hvd::as_span(m);
  return s.data() == m.data() && s.size() == static_cast<std::size_t>(m.size());
}

static_assert(std::is_same_v<decltype(hvd::as_span(std::declval<Eigen::MatrixXf&>())), std::span<float>>);
static_assert(std::is_same_v<decltype(hvd::as_span(std::declval<const Eigen::MatrixXf&>())), std::span<const float>>);
static_assert(std::is_same_v<hvd::element_of<const Eigen::VectorXcd&>, std::complex<double>>);
static_assert(std::is_same_v<hvd::element_of<Eigen::Map<const Eigen::VectorXi>>, int>);
static_assert(hvd::Buffer<Eigen::ArrayXXf> && hvd::Buffer<Eigen::Matrix3d&>);

}  // namespace

TEST_CASE("objects: vectors, matrices, arrays, of fixed and of free size") {
  Eigen::VectorXf v = Eigen::VectorXf::LinSpaced(5, 1, 5);
  Eigen::RowVector3d r(1, 2, 3);
  Eigen::MatrixXf m(3, 4);
  row_major rm(3, 4);
  Eigen::Matrix3d fixed;
  Eigen::Matrix<int, 2, Eigen::Dynamic> half_fixed(2, 7);
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, 0, 8, 8> bounded(3, 2);  // 6 of its 64 elements
  Eigen::ArrayXXd array(2, 2);
  CHECK(spans(v));
  CHECK(spans(r));
  CHECK(spans(m));
  CHECK(spans(rm));
  CHECK(spans(fixed));
  CHECK(spans(half_fixed));
  CHECK(spans(bounded));
  CHECK(spans(array));
  CHECK(spans(std::as_const(m)));
  CHECK(hvd::as_span(bounded).size() == 6);
  CHECK(hvd::as_span(Eigen::VectorXf()).empty());
  CHECK(hvd::as_span(Eigen::MatrixXf(0, 5)).empty());
}

TEST_CASE("parts: segments, columns, rows of row-major matrices") {
  Eigen::VectorXd v(10);
  Eigen::MatrixXd m(4, 6);
  row_major rm(4, 6);
  Eigen::Matrix<float, 3, 5> fixed;
  CHECK(spans(v.segment(2, 3)));
  CHECK(spans(v.head(4)));
  CHECK(spans(v.tail<2>()));
  CHECK(spans(v.segment(1, 8).head(3)));
  CHECK(spans(m.col(2)));
  CHECK(spans(m.col(2).segment(1, 2)));
  CHECK(spans(m.middleCols(1, 3)));
  CHECK(spans(m.leftCols(2)));
  CHECK(spans(m.rightCols<2>()));
  CHECK(spans(rm.row(1)));
  CHECK(spans(rm.middleRows(1, 2)));
  CHECK(spans(rm.topRows(3)));
  CHECK(spans(fixed.col(1)));
  CHECK(spans(fixed.middleCols<2>(1)));
  CHECK(spans(std::as_const(m).middleCols(1, 3)));
  CHECK(spans(std::as_const(v).segment(2, 3)));
  CHECK(hvd::as_span(m.middleCols(1, 3)).data() == m.data() + 4);
  CHECK(hvd::as_span(m.middleCols(1, 0)).empty());
}

TEST_CASE("maps, references, and parts of them") {
  std::vector<float> memory(24);
  Eigen::Map<Eigen::VectorXf> vector(memory.data(), 24);
  Eigen::Map<Eigen::MatrixXf> matrix(memory.data(), 4, 6);
  Eigen::Map<const Eigen::MatrixXf> constant(memory.data(), 4, 6);
  Eigen::Map<Eigen::Matrix<float, 4, 6>> fixed(memory.data());
  Eigen::Map<Eigen::MatrixXf, Eigen::Aligned16> aligned(memory.data(), 4, 6);
  CHECK(spans(vector));
  CHECK(spans(matrix));
  CHECK(spans(constant));
  CHECK(spans(fixed));
  CHECK(spans(aligned));
  CHECK(spans(vector.segment(3, 4)));
  CHECK(spans(matrix.col(1)));
  CHECK(spans(matrix.middleCols(1, 2)));
  CHECK(spans(constant.middleCols(1, 2)));
  static_assert(std::is_same_v<decltype(hvd::as_span(constant)), std::span<const float>>);

  Eigen::MatrixXf m(4, 6);
  CHECK(spans(m.middleCols(1, 4).middleCols(1, 2)));
  CHECK(spans(m.middleCols(1, 4).col(2)));
  Eigen::Ref<Eigen::VectorXf> reference = vector;
  Eigen::Ref<const Eigen::VectorXf> constant_reference = vector;
  CHECK(spans(reference));
  CHECK(spans(constant_reference));
}

TEST_CASE("collectives on matrices") {
  everywhere([](auto& comm) {
    const auto p = static_cast<float>(comm.size());
    Eigen::MatrixXf m = Eigen::MatrixXf::Constant(3, 4, static_cast<float>(comm.rank() + 1));
    hvd::allreduce(comm, m);
    CHECK(m == Eigen::MatrixXf::Constant(3, 4, p * (p + 1) / 2));

    // Only the two columns in the middle.
    m.setConstant(1);
    hvd::allreduce(comm, m.middleCols(1, 2));
    Eigen::MatrixXf want = Eigen::MatrixXf::Ones(3, 4);
    want.middleCols(1, 2).setConstant(p);
    CHECK(m == want);

    const Eigen::MatrixXf in = Eigen::MatrixXf::Constant(2, 2, static_cast<float>(comm.rank()));
    Eigen::Matrix2f out;
    hvd::allreduce(comm, in, out, hvd::max);
    CHECK(out == Eigen::Matrix2f::Constant(p - 1));

    std::vector<float> memory(6, static_cast<float>(comm.rank()));
    hvd::broadcast(comm, Eigen::Map<Eigen::VectorXf>(memory.data(), 6).segment(1, 4));
    CHECK(memory[0] == static_cast<float>(comm.rank()));
    CHECK(memory[1] == 0);
    CHECK(memory[4] == 0);
    CHECK(memory[5] == static_cast<float>(comm.rank()));

    // Every rank its column.
    Eigen::MatrixXd all(3, comm.size());
    hvd::allgather(comm, Eigen::Vector3d::Constant(comm.rank()).eval(), all);
    for (int q = 0; q != comm.size(); ++q) CHECK(all.col(q) == Eigen::Vector3d::Constant(q));
    all.setConstant(-1);
    all.col(comm.rank()).setConstant(comm.rank());
    hvd::allgather(comm, all.col(comm.rank()), all);  // in place
    for (int q = 0; q != comm.size(); ++q) CHECK(all.col(q) == Eigen::Vector3d::Constant(q));

    hvd::send(comm, all, comm.rank());
    Eigen::MatrixXd got(3, comm.size());
    hvd::recv(comm, got, comm.rank());
    CHECK(got == all);
  });
}

TEST_CASE("Eigen's 16-bit types are hvd's, and borrowed are maps and blocks, not matrices") {
  static_assert(hvd::dtype_of<Eigen::half> == hvd::dtype::float16);
  static_assert(hvd::dtype_of<Eigen::bfloat16> == hvd::dtype::bfloat16);
  static_assert(hvd::BorrowedBuffer<Eigen::Map<Eigen::VectorXf>> && !hvd::BorrowedBuffer<Eigen::VectorXf>);
  static_assert(hvd::BorrowedBuffer<Eigen::VectorXf&> &&
                hvd::BorrowedBuffer<decltype(std::declval<Eigen::MatrixXf&>().col(0))>);
  everywhere([](auto& comm) {
    const auto p = static_cast<float>(comm.size());
    Eigen::Vector<Eigen::half, 5> halves = Eigen::Vector<Eigen::half, 5>::Constant(Eigen::half(1.5f));
    Eigen::Vector<Eigen::bfloat16, 5> brains = Eigen::Vector<Eigen::bfloat16, 5>::Constant(Eigen::bfloat16(0.5f));
    hvd::allreduce(comm, halves);
    hvd::allreduce(comm, brains, hvd::scaled(hvd::sum, 2.0));
    CHECK(static_cast<float>(halves[4]) == 1.5f * p);
    CHECK(static_cast<float>(brains[4]) == p);
  });
}
