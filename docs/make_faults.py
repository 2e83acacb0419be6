"""Writes docs/17_faults.md and docs/17_faults.zh-CN.md from the rules of diagnosis and the lead of each page.

In: nothing. Out: the pages, as text or as files; tests/diagnose/test_faults_page.py holds the files up to date. What
stands above `MARK` in a page is written by hand and kept.

    python docs/make_faults.py
"""

from __future__ import annotations

from pathlib import Path

from msparallel.diagnose.rule import CAUSES, FILES, Rule, rules_of

PAGES = {"en": Path(__file__).with_name("17_faults.md"), "zh": Path(__file__).with_name("17_faults.zh-CN.md")}
MARK = {
    "en": "<!-- Below: written by `python docs/make_faults.py` from the rules; do not edit by hand. -->",
    "zh": "<!-- 以下由 `python docs/make_faults.py` 根据规则生成，请勿手工修改。 -->",
}
TITLES = {
    "en": dict(zip(FILES, ("Environment", "Starting", "Collectives", "Links", "Who takes part", "Devices", "Operators",
                          "Hosts", "Cluster", "Framework and script", "What no rule knows exactly"), strict=True)),
    "zh": dict(zip(FILES, ("环境", "启动", "集合通信", "链路", "成员与调度", "设备", "算子", "主机", "集群",
                          "框架与脚本", "没有确切规则的错误"), strict=True)),
}  # fmt: skip
WORDS = {
    "en": {"do": "Do", "looks": "Looks like", "follows": "Follows from", "causes": "any cause", "source": "Source",
           "warning": "A warning: it alone does not make the exit code 1.",
           "last words": "An error where its process wrote nothing more; else a warning, which alone does not make the "
           "exit code 1.", "colon": ": ", "stop": ".", "and": ", "},
    "zh": {"do": "处理", "looks": "样子", "follows": "可能源自", "causes": "任何原因", "source": "出处",
           "warning": "只是警告：单凭它退出码不是 1。",
           "last words": "如果进程此后再没有写下什么，就是错误；否则只是警告，单凭它退出码不是 1。",
           "colon": "：", "stop": "。", "and": "、"},
}  # fmt: skip


def page(language: str) -> str:
    """The whole page: the lead that the file has, and every rule."""
    lead = PAGES[language].read_text(encoding="utf-8").partition(MARK[language])[0]
    lines = [lead.rstrip("\n"), "", MARK[language]]
    for name in FILES:
        lines += ["", f"## {TITLES[language][name]}"]
        for rule in rules_of(name):
            lines += ["", f"### {rule.id}", "", *_rule(rule, language)]
    return "\n".join(lines) + "\n"


def _rule(rule: Rule, language: str) -> list[str]:
    words, chinese = WORDS[language], language == "zh"
    lines = [rule.root_cause_zh if chinese else rule.root_cause]
    if rule.severity == "warning":
        lines += ["", words["last words" if rule.unknown else "warning"]]
    if rule.examples:
        examples = [example.text for example in rule.examples]
        lines += ["", f"{words['looks']}{words['colon'].rstrip()}", "", "```text", *examples, "```"]
    lines += ["", f"- **{words['do']}**{words['colon']}{rule.remedy_zh if chinese else rule.remedy}"]
    if rule.consequence_of:
        names = [words["causes"] if name == CAUSES else f"[{name}](#{name})" for name in rule.consequence_of]
        lines.append(f"- **{words['follows']}**{words['colon']}{words['and'].join(names)}{words['stop']}")
    return [*lines, f"- **{words['source']}**{words['colon']}{rule.source}{words['stop']}"]


if __name__ == "__main__":
    for code, file in PAGES.items():
        file.write_text(page(code), encoding="utf-8")
        print(f"wrote {file}")
