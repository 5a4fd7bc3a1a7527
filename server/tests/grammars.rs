//! Grammars in EBNF: which texts keep to them, and what is said of broken ones.

use crate::byte_fallback::{END, IDS, tokenizer};
use piecewise_server::structured::{Structure, Structures};

/// The id of the byte 0; the others follow.
const FIRST_BYTE: u32 = 4;

struct Grammars(Structures);

impl Grammars {
    fn new() -> Self {
        Self(Structures::new(&tokenizer().vocabulary(), &[END]).unwrap())
    }

    /// Whether a text keeps to a grammar, byte by byte and to its end.
    fn takes(&self, grammar: &str, text: &str) -> bool {
        let grammar = Structure::Grammar(grammar.to_owned());
        let mut constraint = self.0.constraint(&grammar, "grammar", None, &|| true).unwrap();
        let bytes = text.bytes().map(|byte| FIRST_BYTE + u32::from(byte));
        for id in bytes.chain([END]) {
            let mut mask = vec![0; IDS.div_ceil(32)];
            constraint.allowed(&mut mask).unwrap();
            if mask[id as usize / 32] >> (id % 32) & 1 == 0 {
                return false;
            }
            if constraint.accept(id).unwrap() {
                return true;
            }
        }
        panic!("the end ends it");
    }

    fn error(&self, grammar: &str) -> String {
        let grammar = Structure::Grammar(grammar.to_owned());
        self.0.constraint(&grammar, "grammar", None, &|| true).unwrap_err().message
    }
}

const SQL: &str = r#"
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"#;
/// As XGrammar's own grammar of JSON: characters one after the other by rules that refer to themselves.
const JSON: &str = r#"
root ::= ws value ws
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (member ("," ws member)*)? "}" ws  # {} too
member ::= string ws ":" ws value ws
array ::= "[" ws (value ws ("," ws value ws)*)? "]"
string ::= "\"" characters
characters ::= "\"" | [^"\\\x00-\x1F] characters | "\\" escape characters
escape ::= ["\\/bfnrt] | "u" [0-9a-fA-F]{4}
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]{1,3})?
ws ::= [ \n\t]*
"#;

#[test]
fn texts_keep_to_grammars_in_ebnf() {
    let grammars = Grammars::new();
    let (braces, numbers) =
        ("root ::= \"(\" root \")\" | \"x\"", "root ::= root \"+\" [0-9] | [0-9]");
    let cases = [
        (SQL, "SELECT col_1  from table_2  where col_2 = 1 ", true),
        (SQL, "SELECT col_1  from table_2  where col_2 = 3 ", false),
        ("root ::= [a-c]+ \"!\"", "abcab!", true),
        ("root ::= [a-c]+ \"!\"", "!", false),
        ("root ::= [a-c]+ \"!\"", "abd!", false),
        // A lexer that takes the longest of each would not find these.
        ("root ::= [a-z]* \"end\" [0-9]? \"0\"", "bendend0", true),
        ("root ::= \"a\" \"bc\" | \"ab\" \"d\"", "abc", true),
        ("root ::= ([a-z] | \"ab\") \"c\"", "abc", true),
        ("root ::= [a-c]{2} [0-9]{1,3} \"x\"{2,}", "ab123xxx", true),
        ("root ::= [a-c]{2} [0-9]{1,3} \"x\"{2,}", "ab1234xx", false),
        ("root ::= [a-c]{2} [0-9]{1,3} \"x\"{2,}", "ab1x", false),
        ("root ::= \"x\"{0} (\"y\" | \"\")", "", true),
        ("root ::= \"x\"{0} (\"y\" | \"\")", "x", false),
        // Large bounds of short texts.
        ("root ::= [a-z]{0,1000000000} \"!\"", "ab!", true),
        ("root ::= (\"a\"*){1000000000} \"!\"", "!", true),
        ("root ::= [^a\\]\\-] [x\\-z] [+-]", "é-+", true),
        ("root ::= [^a\\]\\-] [x\\-z] [+-]", "]-+", false),
        ("root ::= [^a\\]\\-] [x\\-z] [+-]", "by+", false),
        (r#"root ::= "\t\"\\\x41\u00e9\U0001F980/\x7f" ."#, "\t\"\\Aé🦀/\x7f\n", true),
        ("# first\nroot ::= # then\n  a-b\n  | (\n x.y ) \na-b ::= \"#\"\nx.y::=\"|\"", "|", true),
        ("# first\nroot ::= # then\n  a-b\n  | (\n x.y ) \na-b ::= \"#\"\nx.y::=\"|\"", "#", true),
        ("list ::= \"x\" list | \"\"\r\nroot ::= \"[\" list \"]\"\r\n", "[xxx]", true),
        (braces, "((x))", true),
        (braces, "((x)", false),
        (numbers, "1+2+3", true),
        (numbers, "1+", false),
        (JSON, "{\"a\": [1, -2.5e+3, {}, [] ], \"\\u00e9\\n\": \"b\\\"\" }", true),
        (JSON, "{\"a\": [1, 02]}", false),
        (JSON, "{\"a\": \"b\n\"}", false),
        (JSON, "{\"a\"}", false),
    ];
    for (grammar, text, is_taken) in cases {
        assert_eq!(grammars.takes(grammar, text), is_taken, "{text:?} of {grammar}");
    }
    // The other form is as it was.
    assert!(grammars.takes("start: A\nA: /[a-c]/ \"::=\"", "b::="));
}

#[test]
fn broken_grammars_are_refused_by_their_lines() {
    let grammars = Grammars::new();
    for (grammar, says) in [
        ("root ::=", "line 1: something to come is wanted (`\"\"` is an empty text), but the"),
        ("root ::= \"a\" |\n\nb ::= \"c\"", "line 3: something to come is wanted"),
        ("root ::= a\n\na ::= b", "line 3: no rule is called `b`"),
        ("a ::= \"x\"", "no rule is called `root`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: `root` has been defined in line 1"),
        (
            "root ::= (\n\"a\" ",
            "line 2: a `)` is wanted for the `(` of line 1, but the grammar ends",
        ),
        ("root ::= \"a\" )", "line 1: a rule is wanted, as `name ::= ..`, not \")\""),
        ("root ::= \"a\n\n", "line 1: a text has no end"),
        ("root ::= \"a\"\nb ::= [a", "line 2: a class has no end"),
        ("root ::= []", "line 1: a class has no character"),
        ("root ::= [z-a]", "line 1: 'z' to 'a' is no range"),
        ("root ::= \"\\q\"", "line 1: a backslash has an escape behind it, not \"q"),
        ("root ::= \"\\xg0\"", "line 1: an escape is the number of a character"),
        ("root ::= \"\\ud800\"", "line 1: an escape is the number of a character"),
        ("root ::= \"a\"{3,2}", "line 1: a repetition ends below its beginning"),
        ("root ::= \"a\"{,2}", "line 1: a number of times is wanted, not \",2}"),
        ("root ::= \"a\"{2;}", "line 1: a `}` is wanted, not \";}"),
        ("root ::= \"a\"{99999999999}", "line 1: a number of times is wanted"),
        ("root ::= \"a\" & \"b\"", "line 1: a text, a class, a group or a rule is wanted, not \"&"),
        ("root ::= \"a\" (= \"b\")", "line 1: what follows can't be asked for"),
        ("root ::= root", "line 1: `root` never ends: whichever way it goes on"),
        ("root ::= \"a\" root", "line 1: `root` never ends"),
        ("root ::= \"a\" b\nb ::= c \"x\"\nc ::= b | \"y\" c", "line 1: `root` never ends"),
        ("root ::= \"a\" | b\nb ::= \"x\" b", "line 2: `b` never ends"),
        ("root ::= \"a\"\nb ::= \"x\" b", "line 2: `b` never ends"),
        (
            "root ::= [a-z]{1000000000}",
            "line 1: the shortest text of `root` has 1000000000 characters, and 16777216 at most",
        ),
        (
            "root ::= b{9999}\nb ::= (\"xy\" | \"\u{e9}zz\"){9999}",
            "line 1: the shortest text of `root`",
        ),
        (
            "root ::= (\"a\" root)? {1000000000}",
            "line 1: a text, a class, a group or a rule is wanted",
        ),
    ] {
        let error = grammars.error(grammar);
        assert!(error.starts_with(says), "{grammar}: {error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(12_000), ")".repeat(12_000));
    assert!(grammars.takes(&deep, "a"));
    assert!(grammars.error(&format!("root ::= {}", "\"a\"*".repeat(9000))).contains("32768"));
}
