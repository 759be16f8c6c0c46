// hvd/cuda/copy.cu: the kernels of hvd/cuda/copy.cuh for nvcc: tools/ptx makes hvd/cuda/copy_ptx.hpp of it, and a
// program that brings its own device code (HVD_CUDA_FATBIN, see hvd/cuda/copy.hpp) compiles it itself.
#define HVD_CUDA_COPY_CU
#include <hvd/cuda/copy.cuh>
