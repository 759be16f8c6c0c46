// Loads the plug-in named by its argument three times, and forks after each: no handler of a plug-in that has gone may
// run in the child.
#include <cstdio>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int, char** argv) {
  for (int i = 0; i != 3; ++i) {
    void* const plugin = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) {
      std::puts(::dlerror());
      return 1;
    }
    const int found = reinterpret_cast<int (*)()>(::dlsym(plugin, "sum"))();
    ::dlclose(plugin);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    int ended = -1;
    ::waitpid(child, &ended, 0);
    std::printf("%d %d\n", found, ended);
    std::fflush(stdout);
  }
}
