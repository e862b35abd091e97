"""How private things look in a text: secrets, serial numbers, addresses, names of people and hosts.

Where a pattern has two groups, the first one stays and the second one is private. Repeats are bounded: a log
may hold megabytes without a blank, and no pattern may take long over it.
"""

from __future__ import annotations

import re

_SECRET_WORDS = (
    r"(?=[tspcaeml_密口令秘凭授-])(?:(?:token(?!s|iz|_(?:type|id)s?)|secret|passwo?r?d|pwd|passphrase|credential"
    r"|signature|cookie|session[_-]?id|auth(?!or(?!iz))|(?:api|access|private|encrypt(?:ion)?|master|license)"
    r"[ _-]?key|[_-]key|密码|口令|令牌|密钥|秘钥|凭证|授权码)[\w.-]{0,80}"
    r"|(?:(?<![a-z])pass|(?-i:(?<=[a-z])Pass)|(?<![\w.-])[as]k)(?![\w.-]))"
)
"""What names of secrets hold; the letters in front are those that they begin with, for speed."""
_IS = (
    r"""(?:\\{0,4}["']|%2[27])?(?:\s{0,20}(?:[=:：＝]=?>?|->)\s{0,20}(?:-[ \t]+)?|%3[AD](?:%2[27]|%20)?"""
    r"""|(?<=["']),\s{0,20}(?=["'])|(?<=["'])\s{1,9}value\s{0,9}=\s{0,9}|\sfor\s[^\n:]{1,60}:\s{0,9})"""
)
_PIECE = r"""(?:[^\s\0"',;&\])}]|[,;&\])}](?=[^\s\0"',;&\])}]))"""
"""A character of a value without quotes: a mark that could end it does so where it is the last."""
_VALUE = (
    r"(?:[!&][\w!]*[ \t]+)?"  # in YAML a tag, an anchor
    rf"""(?:(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')(?:"[^"\n]*"|'[^'\n]*'|(?![,;&\])}}]){_PIECE}+)*"""
    r"""|\\+["'][^\n\0]*?\\+["']|\[[^\]\0]{0,2000}\]|\\[ \t]*\n[ \t]*[^\s\0]+"""
    rf"""|"[^"\n\0]*(?:\n[ \t]+[^"\n\0]*)*"?|(?:(?:token|apikey|digest)[ ])?(?!\{{){_PIECE}+)"""
)


def _compiled(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(each, re.IGNORECASE | re.MULTILINE | re.DOTALL) for each in patterns)


FORMS = _compiled(
    r"()(-{4,5}[ ]?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?[ ]?-{4,5}.*?"
    r"(?:-{4,5}[ ]?END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?[ ]?-{4,5}|\Z))",
    r"()((?:^[\w+/=]+[ \t\r]*\n){1,200}-{4,5}[ ]?END [A-Z0-9 ]{0,40}PRIVATE KEY)",
    r"()((?<![a-z0-9])(?:(?:hf|gh[opusr]|glpat|github_pat|sk|xox[abprs]|npm|pypi|dop_v1|dckr_pat)[_-]"
    r"[\w-]{12,}|(?-i:AIza)[\w-]{30,}|(?-i:AKIA|ASIA|LTAI)\w{12,}"
    r"|(?-i:eyJ)[\w-]{8,}\.[\w-]+\.[\w-]*|ms-[0-9a-f]{8}-[0-9a-f-]{20,}))",
    r"((?:hooks\.slack\.com/services|/hook|/webhooks?)/)([^\s\0\"']{12,})",
    r"(\b(?:bearer|basic)\s+)([\w.~+/=-]{8,})",
    r"(\bdigest\s+)(\w+=[^\n\0|]*[^\s\0|])",
    # a password may hold / and @
    r"(:(?://|\\/\\/|%2F%2F))([^/\s\0:]{0,99}:[^\s\0\"']{0,199}|[^/\s\0]{1,199})(?=@)",
)
"""Secrets that are known by their form, or by what stands before them."""
NAMED = _compiled(
    r"(cookie[\"']?\s*:\s*)([^\n\0\"']+)",
    rf"(<(?:{_SECRET_WORDS})(?:\s[^<>]{{0,99}})?>)([^<]{{1,999}})(?=</)",
    rf"((?:{_SECRET_WORDS})[\"']?:[ \t]*[|>][-+0-9]*[ \t]*\n[ \t]+)([^\n\0]*(?:\n[ \t]+[^\n\0]*)*)",
    # of a line of its own all: passwords may hold blanks
    r"((?:^|\0)[ \t]*[\w.-]{0,40}(?:passwo?r?d|passphrase|密码|口令)[\w.-]{0,40}[ \t]*[=:：][ \t]*)"
    r"([^\s\0\"'\[{|>!&<][^\n\0|#]*[^\s\0|#])",
    rf"((?:{_SECRET_WORDS}){_IS}|[?&](?:key|sign?|ticket)=|--[\w-]{{0,40}}(?:{_SECRET_WORDS})[ \t]{{1,9}})"
    rf"({_VALUE})",
    # "password abc12345": what follows looks like one
    rf"((?:{_SECRET_WORDS})(?: is| was)?[ \t]{{1,20}})"
    r"((?=[^\s\0]{0,40}\d)(?=[^\s\0]{0,40}[a-z])[^\s\0\"',;|<]{10,})",
)
"""Secrets that are called so."""
_SECRET_NAME = re.compile(_SECRET_WORDS, re.IGNORECASE)
_IN_QUERY = re.compile(r"[?&](?:key|sign?|ticket)=", re.IGNORECASE)
IS_MASK = re.compile(r"<secret-\d+>")
SERIAL = re.compile(
    r"((?:\bserial(?:[ _-]?(?:number|num|no\.?))?|\bsn|\bs/n|\b[gu]uid|die[ _-]?id"
    r"|machine[ _-]?id|asset[ _-]?tag|序列号)\\?[\"']?\s{0,40}[:=：|]\s{0,40}\\?[\"']?)"
    r"([^\s\"'](?:[^\n\0|,;\"'\\]*[^\s\0|,;\"'\\])?)",
    re.IGNORECASE,
)
MAC = re.compile(
    r"(?:(?<![0-9a-z])[0-9a-f]{2}(:)|(?<![\w-])[0-9a-f]{2}(-))(?:[0-9a-f]{2}(?:\1|\2)){4,18}"
    r"[0-9a-f]{2}(?![0-9a-z])"
    r"|(?<![\w.])(?=[0-9.]{0,14}[a-f])[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}(?![\w.])"
    r"|(?:(?<=mac.)|(?<=mac: )|(?<=addr.)|(?<=addr: )|(?<=ether.)|(?<=\benx))"
    r"[0-9a-f]{4}(\.?)[0-9a-f]{4}\3[0-9a-f]{4}"
    r"(?![0-9a-z])",
    re.IGNORECASE,
)
COLONS = re.compile(r"(?<![\w.])[0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]*", re.IGNORECASE)
QUADS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d)|(?<=\bip-)(?:\d{1,3}-){3}\d{1,3}(?![\d-])")
_AT_NAME = r"(?<![\w.%+-])([\w.+-]+)(@|%40)"
MAIL = re.compile(_AT_NAME + r"([\w-]+(?:\.[\w-]+)*\.[a-z]{2,12})(?![\w-])", re.IGNORECASE)
AT = re.compile(_AT_NAME + r"([\w-]+(?:\.[\w-]+)*)")
HOME = re.compile(
    r"""(?:[/\\]|%2F)(?:home|Users)(?:[/\\]{1,4}|%2F)([^/\\\s\0:"',;%&|()<>\[\]{}，。；：]+)""",
    re.IGNORECASE,
)
USER = re.compile(
    r"""(?<![a-z])(?:user[_ ]?name|user|login|logname|用户名?)["']?\s{0,20}[=:：]"""
    r"""\s{0,20}["']?([\w.-]{3,40})""",
    re.IGNORECASE,
)
HOST = re.compile(
    r"""(?<![a-z])(?:(?:host|node|server)[_ ]?name|主机名?|host(?=\W{1,9}[a-z.-]{1,40}\d))["']?"""
    r"""\s{0,20}[=:：]\s{0,20}["']?([\w.-]{3,99})""",
    re.IGNORECASE,
)
IN_URL = re.compile(r"://(?:[^/\s\0@]{0,199}@)?([\w-]+(?:\.[\w-]+)*)")
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""What colours a terminal: it may stand in the middle of anything."""
_PUBLIC = re.compile(
    r"(?:.*\.)?(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.cn|(?:github|gitee|gitcode|hiascend)\.com"
    r"|(?:pypi|pytorch|python)\.org|mindspore\.cn)",
    re.IGNORECASE,
)
_COMMON = """
root nobody user users admin administrator ubuntu debian centos openeuler ec2-user docker test home
data run model models log logs dev usr local etc proc sys bin lib lib64 opt var tmp localhost host
npu smi npu-smi ascend info huawei driver firmware cann version python torch mindspore link status
health card cards hwhiaiuser hwdmuser hwbaseuser rank train name none null true false ok up down and
the enabled disabled required optional git yes no on off warning alarm critical error failed success
switch address netmask gateway memory chip device unknown default linux aarch64 x86_64 kernel cpu gpu
master main worker server proxy api www mirror hub process begin begins ended
"""
COMMON = frozenset(_COMMON.split())
"""Names that tell of nobody, and words that the texts are full of, in small letters: they stay."""


def is_name(found: str) -> bool:
    """Whether a word that a text seems to call a name can be one: versions and chips cannot."""
    return (
        re.fullmatch(r"[^\W\d_][\w.+-]+", found) is not None
        and re.match(r"(?i)(?:v|rc|atlas|ascend|npu|cuda)[\d.:]*\d|ascend", found) is None
        and found.lower() not in COMMON
    )


def is_public(host: str) -> bool:
    """Whether everybody knows a host of the web."""
    return _PUBLIC.fullmatch(host) is not None


def is_secret(variable: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.search(variable) is not None


def speaks_of_secrets(text: str) -> bool:
    """Whether anything of NAMED can be in a text."""
    return _SECRET_NAME.search(text) is not None or _IN_QUERY.search(text) is not None
