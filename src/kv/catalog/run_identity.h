// With a shared database: which run of a daemon used a data folder last, and whether it is surely dead. A run writes a random
// number, its incarnation, into the locked lock file of its data folder, and then into the database beside its lease. So the
// next run in the folder knows whose lease it may end: whoever gets the lock knows that the run that is named there has ended.
//
// A copy of the folder has the file, too, while its owner lives. So the file also names itself (device and inode) and the boot
// of the machine. A copy is another file, or the file of another boot, and proves nothing.
#pragma once

#include <string>

#include "base/system/unique_fd.h"

namespace uma::kv {

// The incarnation of the run that had the lock before; empty: there was none, or its end is not proven. Requires: `lock` is
// held (take_catalog_lock()).
[[nodiscard]] std::string dead_incarnation(const UniqueFd& lock);

// A new incarnation, which the file now has: 32 hexadecimal digits. If it cannot be written (the disk is full), that is logged
// and the file has none; if the machine does not tell its boot, the file stays as it is. Requires: `lock` is held.
[[nodiscard]] std::string begin_incarnation(const UniqueFd& lock);

}  // namespace uma::kv
