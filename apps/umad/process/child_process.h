// Starts programs whose output the daemon reads.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/system/unique_fd.h"

namespace uma::umad {

// The part of this process's environment for a child that reads strangers' files or answers: where libraries and temporary
// files are, the language, and variables whose names begin as one of `also`. The others may be secrets, such as passwords.
[[nodiscard]] std::vector<std::string> child_environment(std::initializer_list<std::string_view> also = {});

// The descriptors that a child reads and writes; a negative one stands for nothing.
struct ChildFiles {
  int input = -1;
  int output = -1;
  int errors = -1;
};

// Starts the program with these files, no other open one, and no blocked signal. The descriptors are above the first three.
// `arguments` begin with the program's name. Returns its process id, or a negative errno.
[[nodiscard]] pid_t spawn_child(const std::string& program, std::vector<std::string> arguments,
                                std::vector<std::string> environment, const ChildFiles& given);

// Starts the program with its output and errors in `output`, which does not block, no input, no other open file, and no blocked
// signal. `arguments` begin with the program's name. Returns its process id, or a negative errno.
[[nodiscard]] pid_t spawn_child(const std::string& program, std::vector<std::string> arguments,
                                std::vector<std::string> environment, UniqueFd& output);

}  // namespace uma::umad
