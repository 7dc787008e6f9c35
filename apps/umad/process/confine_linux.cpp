#include "umad/process/confine.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <vector>

#include "base/system/sanitizer.h"

namespace uma::umad {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#elif defined(__riscv) && __riscv_xlen == 64
constexpr std::uint32_t kArchitecture = AUDIT_ARCH_RISCV64;
#else
constexpr std::uint32_t kArchitecture = 0;  // Its numbers of calls are not known here.
#endif

constexpr std::array kAllowed = {__NR_read,          __NR_write,     __NR_brk,        __NR_munmap,
                                 __NR_mremap,        __NR_exit,      __NR_exit_group, __NR_rt_sigreturn,
                                 __NR_clock_gettime, __NR_getrandom, __NR_futex,      __NR_madvise};
// Allowed unless they would make memory executable.
constexpr std::array kMapping = {__NR_mmap, __NR_mprotect};

constexpr sock_filter statement(int code, std::uint32_t value) {
  return {.code = static_cast<std::uint16_t>(code), .jt = 0, .jf = 0, .k = value};
}
// Skips `then` or `otherwise` statements.
constexpr sock_filter jump(int code, std::uint32_t value, std::uint8_t then, std::uint8_t otherwise) {
  return {.code = static_cast<std::uint16_t>(code), .jt = then, .jf = otherwise, .k = value};
}

[[maybe_unused]] std::vector<sock_filter> allowed_calls() {
  constexpr std::uint32_t kNumber = offsetof(seccomp_data, nr);
  constexpr std::uint32_t kProtection = offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t);  // The third argument.
  std::vector<sock_filter> program{
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)), jump(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), statement(BPF_LD | BPF_W | BPF_ABS, kNumber)};
  for (const long number : kAllowed) {
    program.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
    program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  for (const long number : kMapping) {
    program.push_back(jump(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 3));
    program.push_back(statement(BPF_LD | BPF_W | BPF_ABS, kProtection));
    program.push_back(jump(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0));
    program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    program.push_back(statement(BPF_LD | BPF_W | BPF_ABS, kNumber));
  }
  program.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  return program;
}

}  // namespace

bool confine() {
#if UMA_HAS_SANITIZER
  return true;  // The sanitizers make other calls.
#else
  if (kArchitecture == 0) return true;
  std::vector<sock_filter> statements = allowed_calls();
  const sock_fprog program{.len = static_cast<unsigned short>(statements.size()), .filter = statements.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
#endif
}

}  // namespace uma::umad
