/* C11 or C++17: the mean of what two ranks have. */
#include <hvd/c/hvd.h>

#include <stdio.h>

static int work(hvd_comm comm, void* user) {
  float x[3] = {1, 2, (float)hvd_rank(comm)};
  (void)user;
  if (hvd_allreduce(comm, x, x, 3, HVD_FLOAT32, HVD_AVERAGE) != HVD_OK) {
    fprintf(stderr, "%s\n", hvd_last_error());
    return 1;
  }
  if (hvd_rank(comm) == 0) printf("%g %g %g\n", x[0], x[1], x[2]);
  return 0;
}

int main(void) {
  int code = 1;
  if (hvd_fork_run(HVD_ABI_VERSION, 2, work, NULL, &code) != HVD_OK) fprintf(stderr, "%s\n", hvd_last_error());
  return code;
}
