#include "make_model/prose_vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <format>
#include <string>
#include <unordered_set>
#include <utility>

#include <llama.h>

namespace uma {

namespace {

constexpr std::string_view kBlank = "\u2581";  // How SentencePiece writes a space.

// Common words of English and of the prompts of coding agents. Each has two tokens: after a space and elsewhere.
constexpr std::string_view kProseWords =
    "the of and to a in is it you that for on are with as be this have from or not by will can if use when do all your an "
    "any at but which has was more file files tool tools code user function type string description parameters properties "
    "object required name command path content line lines number boolean array default true false null one two only should "
    "must may before after then than them they their there these those what where how why who we our us its it's don't about "
    "into out up down over under between each other another same such some no never always also just like make made using "
    "used uses run running read reading write writing edit edited editing search find found list create created delete "
    "remove change changes changed add added adding update check test tests testing build project directory directories "
    "folder current working work works task tasks agent model message messages response result results return returns "
    "returned output input value values example examples error errors failed fail success first last next new old existing "
    "exist exists full absolute relative optional provide provided provides include includes including contain contains "
    "containing specific specified given set get put let see show call called calling calls execute shell terminal bash "
    "process system time date limit limits maximum minimum length size start starting end ends ending begin offset range "
    "multiple single large small long short text pattern regex match matches matching replace format json schema key keys id "
    "ids option options information instructions instruction request requests server client context token tokens question "
    "questions answer answers ask asked asks explain need needs needed want wants help helpful able please note important "
    "ensure without within while until during because since so however instead rather unless whether even still already "
    "often every many much most few less least very well good better best right wrong correct incorrect valid invalid "
    "available possible necessary simple complex clear different similar via per etc e.g i.e would could might did does "
    "doing done being been had were he she his her him my me i keep kept take takes taken give gives go goes going went come "
    "came know known think look looks looking say says said tell means mean try tries tried follow following followed below "
    "above here now again once both either neither nor own part parts way ways thing things case cases kind state status "
    "step steps plan plans point points order level based package packages module modules import imports export class "
    "classes method methods variable variables library libraries framework repository branch commit commits git source web "
    "page pages link links url http https fetch version versions install installed dependency dependencies config "
    "configuration setting settings environment feature features bug bugs fix fixes fixed implement implementation behavior "
    "style comment comments document documentation readme summary summarize title topic session history memory section "
    "sections item items index image images network access permission permissions allowed allow allows deny sandbox mode "
    "approval safe security secret password notes data database query table field fields record count total sum average "
    "integer float double char const void static public private int bool else elif def self print printf define struct enum "
    "namespace template auto size_t std uint async await var catch throw throws finally switch break continue yield lambda "
    "unknown undefined none empty main args argv stdin stdout stderr exit home tmp usr bin src lib docs node python "
    "javascript typescript rust java ruby cargo npm yarn pip cmake docker linux macos windows upon little girl dog cat story "
    "world hello house water people day days night year years hour minute minutes second seconds three four five six seven "
    "eight nine ten hundred thousand red green blue black white select prompt prompts display displayed preview label choice "
    "compare describe expected concise preferred prefer explicit explicitly interface api interactive engineering software "
    "assist guidelines guideline rule rules strictly avoid assume assumption verify validate analyze inspect review "
    "understand understanding resolve resolved solution solve complete completed completely finish directly accurate "
    "technical professional tone brief detail details additional extra further various common general generally particular "
    "potential potentially appropriate relevant related separate several unnecessary unrelated independent parallel "
    "background sequence automatically currently previously immediately usually especially carefully exactly simply really "
    "likely header headers stream progress event events body local remote global custom internal external supported support "
    "enabled disabled enable disable effort decision reason reasoning thinking budget deadline queue thread worker machine "
    "engine cache stop cancel load loaded open close closed save saved store copy move pull push merge submit send sent "
    "receive received wait resume restart timeout milliseconds schedule monitor log logs debug trace warning notice report "
    "flag flags schemas uri media inside outside across around through against toward among beyond throughout near previous "
    "prior everything something anything nothing everyone someone anyone person team developer engineer company product "
    "market architecture design patterns structure structured convention conventions idiomatic codebase refactor modify "
    "modified modifying execution executed executing perform performed operation operations action actions approach "
    "processes goal goals purpose scope requirement requirements preference preferences guidance practice quality "
    "performance safety risk dangerous destructive sensitive credentials communicate communication conversation "
    "conversational respond remember learn knowledge evidence glob grep ripgrep diff patch apply apply_patch todo notebook "
    "cell cells subagent workspace plugin skill skills hook hooks markdown formatting heading bullet emoji monospace "
    "rendered quote quoted escape newline whitespace character characters sentence paragraph word words letter letters "
    "january february march april june july august september october november december monday friday today tomorrow increase "
    "decrease reduce improve improvement optimize issue issues problem problems cause causes effect effects larger largest "
    "smaller higher lower highest lowest early late later recent recently maybe perhaps although though despite yet thus "
    "therefore hence otherwise whole entire half third rest remaining left top bottom middle side front back head tail turn "
    "turned hold bring began become becomes became happen happens seem seems appear appears believe consider considered "
    "expect leave meet stand pay play study hear feel felt speak live lives sit group area hand place week month fact eye "
    "job business room money book family country school student You Your The This That These If When Where Use Used Do Not "
    "Never Always Only For From In On At To It Is Are As An And Or But All Any Each No Yes Note Important Example Examples "
    "Read Reads Write Writes Edit Create Delete Update Search Find List Get Set Run Execute Return Returns Show Add Remove "
    "Make Check Call File Files Path Paths Directory Tool Tools Command Commands Code User Name Type Value Values Text Line "
    "Lines String Number Boolean Object Array Optional Required Default Description Output Input Error Errors Result Results "
    "Message Messages Model Task Tasks Agent Plan Bash Shell System Instructions Working Project Test Tests Web Git Commit "
    "Branch Pull Request Whether What Which How Why Who There Then With Without Before After Must Should Can May Will Other "
    "Also Provide Include Includes Avoid Keep Ensure Prefer Please Don't Be By Guidelines Usage Parameters Claude Grep Glob "
    "Notebook Todo Markdown Linux script scripts py ts js md README MUST NOT NEVER IMPORTANT ALWAYS DO CLI API URL JSON HTTP "
    "MCP";

// Pairs and endings of words that are not listed.
constexpr std::string_view kProseParts =
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic ne ea "
    "ra "
    "ce li ch ll be ma si om ur us el la ta di ec ss ac pe il ge tr un ut lo po ag ent ion ing tion ation ment able ible ness "
    "ive "
    "ous ity ence ance ated ating ction ally ship ful less ight ough ould all ess est ist ize ise ure ery ter ver per pro con "
    "com "
    "pre sub int ext";

// JSON, code and Markdown: their marks come in groups. `_` is a space here.
constexpr std::string_view kProseGroups =
    "\": \":_ \":_\" \":_{ \":_{\" \":_[ \":_[\" \":\" \":{ \":{\" \":[ \":[\" \", \",_ \",_\" \",\" }, },_ },_\" },_{ },_{\" "
    "\"} \"}, \"},_ \"},_\" \"}} \"}}, }} }}, }}} {\" [\" \"] \"], {{ [[ ]] ]( (\" \") '] [' ', ** ``` -- --- == === != => -> "
    ":: // "
    "... ._ ,_ :_ ;_ () (); ); ): &&_ || ## ### __ ____ ________ ________________ \n\n \n_ \n__ \n____ \n______ \n________ \n- "
    "\n-_ "
    "\n#_ \n* \n*_ .\n :\n ;\n ,\n \n} \t\t \n\t 00 000 10 20 19 0x ](h </ /> <! \\n \\\" \\\\";

// The tokenizer merges the union with the highest score first: words grow before other parts do.
constexpr float kScoreProseWord = -1.0F;
constexpr float kScoreProsePart = -1e5F;
constexpr float kScoreProseCharacter = -1e6F;

class ProseBuilder {
 public:
  void add(std::string text, float score, llama_token_type type) {
    if (!seen_.insert(text).second) return;
    vocabulary_.texts.push_back(std::move(text));
    vocabulary_.scores.push_back(score);
    vocabulary_.types.push_back(type);
  }

  // Adds the text and all its beginnings of two characters and more. Requires characters of one byte, or kBlank.
  void add_growing(std::string_view text, float score) {
    for (std::size_t end = text.starts_with(kBlank) ? kBlank.size() : 1; end <= text.size();) {
      add(std::string(text.substr(0, end)), score - static_cast<float>(vocabulary_.size()), LLAMA_TOKEN_TYPE_NORMAL);
      end += text.substr(end).starts_with(kBlank) ? kBlank.size() : 1;
    }
  }

  void end_of_special_tokens() { vocabulary_.plain_begin = vocabulary_.size(); }
  [[nodiscard]] Vocabulary take() { return std::move(vocabulary_); }

 private:
  Vocabulary vocabulary_;
  std::unordered_set<std::string> seen_;
};

// Calls `use` with each part of a list that is divided by spaces.
void for_each_part(std::string_view list, auto&& use) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(' '), list.size());
    use(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

}  // namespace

Vocabulary make_prose_vocabulary(std::span<const std::string_view> control_tokens) {
  ProseBuilder builder;
  builder.add("<unk>", 0, LLAMA_TOKEN_TYPE_UNKNOWN);
  builder.add("<s>", 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.add("</s>", 0, LLAMA_TOKEN_TYPE_CONTROL);
  for (int byte = 0; byte < 256; ++byte) builder.add(std::format("<0x{:02X}>", byte), 0, LLAMA_TOKEN_TYPE_BYTE);
  for (const std::string_view text : control_tokens) builder.add(std::string(text), 0, LLAMA_TOKEN_TYPE_CONTROL);
  builder.end_of_special_tokens();

  const auto add_character = [&](std::string text) {
    builder.add(std::move(text), kScoreProseCharacter, LLAMA_TOKEN_TYPE_NORMAL);
  };
  add_character(std::string(kBlank));
  for (const char character : {'\t', '\n'}) add_character(std::string(1, character));
  for (char character = '!'; character <= '~'; ++character) add_character(std::string(1, character));
  for_each_part(kProseWords, [&](std::string_view word) {
    builder.add_growing(std::string(kBlank) + std::string(word), kScoreProseWord);
    builder.add_growing(word, kScoreProseWord);
  });
  for (char first = 'A'; first <= 'Z'; ++first) {
    builder.add_growing(std::string(kBlank) + first, kScoreProsePart);
  }
  for_each_part(kProseParts, [&](std::string_view part) { builder.add_growing(part, kScoreProsePart); });
  for_each_part(kProseGroups, [&](std::string_view group) {
    std::string text;
    for (const char character : group) text += character == '_' ? std::string(kBlank) : std::string(1, character);
    builder.add_growing(text, kScoreProsePart);
  });
  return builder.take();
}

}  // namespace uma
