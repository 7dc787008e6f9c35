#include "base/system/memory_info.h"

#ifdef __APPLE__
#include <cstddef>
#include <mach/mach.h>
#include <sys/sysctl.h>
#else
#include <unistd.h>
#endif

namespace uma {
namespace {

#ifdef __APPLE__

void add_system(MemoryInfo& info) {
  std::uint64_t total = 0;
  std::size_t size = sizeof(total);
  if (::sysctlbyname("hw.memsize", &total, &size, nullptr, 0) == 0) info.total = total;
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (::host_statistics64(::mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count) ==
      KERN_SUCCESS) {
    info.available = (std::uint64_t{pages.free_count} + pages.inactive_count) * vm_kernel_page_size;
  }
}

void add_own(MemoryInfo& info) {
  task_vm_info_data_t own{};
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  if (::task_info(::mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&own), &count) != KERN_SUCCESS) return;
  info.own_resident = own.resident_size;
  info.own_anonymous = own.phys_footprint;
}

#else

void add_system(MemoryInfo& info) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
#ifdef _SC_PHYS_PAGES
  if (const long pages = ::sysconf(_SC_PHYS_PAGES); pages > 0) info.total = static_cast<std::uint64_t>(pages) * page;
#endif
#ifdef _SC_AVPHYS_PAGES
  if (const long pages = ::sysconf(_SC_AVPHYS_PAGES); pages > 0) info.available = static_cast<std::uint64_t>(pages) * page;
#endif
}

void add_own(MemoryInfo& /*info*/) {}

#endif

}  // namespace

MemoryInfo read_memory_info(const std::filesystem::path& /*root*/) {
  MemoryInfo info;
  add_system(info);
  add_own(info);
  return info;
}

std::uint64_t resident_bytes() {
  MemoryInfo info;
  add_own(info);
  return info.own_resident;
}

}  // namespace uma
