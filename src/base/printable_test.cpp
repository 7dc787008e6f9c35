#include "base/printable.h"

#include <gtest/gtest.h>

namespace uma {
namespace {

TEST(Printable, ShowsEscapeSequencesInsteadOfRunningThem) {
  EXPECT_EQ(printable("\x1b]0;owned\x07"), "^[]0;owned^G");
  EXPECT_EQ(printable("\x1b[2Jgone"), "^[[2Jgone");
}

TEST(Printable, ShowsEveryControlCharacterButNewlineAndTab) {
  for (char byte = 1; byte < 0x20; ++byte) {
    const std::string text(1, byte);
    const std::string expected = byte == '\n' || byte == '\t' ? text : std::string{'^', static_cast<char>(byte + '@')};
    EXPECT_EQ(printable(text), expected);
  }
  EXPECT_EQ(printable(std::string_view("\0", 1)), "^@");
  EXPECT_EQ(printable("\x7f"), "^?");
}

TEST(Printable, ShowsC1ControlsInTheirUtf8FormAndAsLoneBytes) {
  EXPECT_EQ(printable("\xc2\x80\xc2\x9b[2J\xc2\x9f"), "<80><9B>[2J<9F>");
  EXPECT_EQ(printable("a\x9b[2J"), "a\ufffd[2J") << "an 8-bit terminal would read the lone byte as a control";
}

TEST(Printable, KeepsTextOfEveryScript) {
  const std::string_view text = "caf\u00e9 \u00a0\u4f60\u597d \U0001F600\n\tx";
  EXPECT_EQ(printable(text), text);
}

TEST(Printable, KeepsACellOnOneLine) {
  EXPECT_EQ(printable_line("a\nb\tc"), "a^Jb^Ic");
}

TEST(Printable, ShowsMarksOfDirectionAndWhatShowsNothing) {
  EXPECT_EQ(printable("rm \u202Efdp.exe"), "rm <U+202E>fdp.exe");
  EXPECT_EQ(printable("a\u200Bb\u2066c\uFEFFd\u061C"), "a<U+200B>b<U+2066>c<U+FEFF>d<U+061C>");
  EXPECT_EQ(printable("\u200D\u2070\u202F"), "\u200D\u2070\u202F");
}

}  // namespace
}  // namespace uma
