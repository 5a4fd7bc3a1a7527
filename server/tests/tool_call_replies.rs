//! What the families write where they call tools.

use serde_json::{Value, json};

/// A parser, a reply, what it says beside its calls, and these.
pub(crate) type Reply = (&'static str, &'static str, &'static str, Vec<(&'static str, Value)>);

/// Every form of every family.
pub(crate) fn replies() -> Vec<Reply> {
    let one = || vec![("add", json!({"a": 3}))];
    let two = || vec![("add", json!({"a": 3})), ("weather", json!({"city": "Zürich \"é\""}))];
    let none = || vec![("clock", json!({}))];
    let mixed = || {
        vec![(
            "add",
            json!({"a": 3, "note": "4 < 5 & </b>\nx", "exact": true, "maybe": null, "list": [1, 2], "of": {"x": 1}}),
        )]
    };
    vec![
        // Hermes, Qwen.
        (
            "hermes",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call>",
            "",
            one(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 3}}</tool_call>",
            "",
            one(),
        ),
        (
            "hermes",
            "<tool_call> {\"name\": \"add\", \"arguments\": {\"a\": 3}} </tool_call>",
            "",
            one(),
        ),
        (
            "hermes",
            "<tool_call>\r\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\r\n</tool_call>\r\n",
            "",
            one(),
        ),
        (
            "hermes",
            "<tool_call>\n\n{\"arguments\": {\"a\": 3}, \"name\": \"add\"}\n\n</tool_call>",
            "",
            one(),
        ),
        ("hermes", "<tool_call>{\"name\": \"clock\", \"arguments\": null}</tool_call>", "", none()),
        ("hermes", "<tool_call>{\"name\": \"clock\"}</tool_call>", "", none()),
        (
            "hermes",
            "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 3}\"}</tool_call>",
            "",
            one(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 3}</tool_call>",
            "",
            one(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 3}}}</tool_call>",
            "",
            one(),
        ),
        ("hermes", "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 3}}", "", one()),
        ("hermes", "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 3}}</tool_", "", one()),
        (
            "hermes",
            "I look.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call>\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich \\\"é\\\"\"}}\n</tool_call>\nDone.",
            "I look.\nDone.",
            two(),
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 3}}\n</tool_call><tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich \\\"é\\\"\"}}\n</tool_call>",
            "",
            two(),
        ),
        // Mistral, in the order in which its forms were published.
        ("mistral", "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 3}}]", "", one()),
        (
            "mistral",
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 3}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich \\\"é\\\"\"}}]",
            "",
            two(),
        ),
        (
            "mistral",
            "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": 3}, \"id\": \"VvvODy9mT\"},{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich \\\"é\\\"\"}, \"id\": \"VvvODy9mU\"}]",
            "",
            two(),
        ),
        ("mistral", "Yes.[TOOL_CALLS]add[ARGS]{\"a\": 3}", "Yes.", one()),
        (
            "mistral",
            "[TOOL_CALLS]add[ARGS]{\"a\": 3}[TOOL_CALLS]weather[ARGS]{\"city\": \"Zürich \\\"é\\\"\"}",
            "",
            two(),
        ),
        (
            "mistral",
            "[TOOL_CALLS]add[CALL_ID]VvvODy9mT[ARGS]{\"a\": 3}[TOOL_CALLS]weather[CALL_ID]VvvODy9mU[ARGS]{\"city\": \"Zürich \\\"é\\\"\"}",
            "",
            two(),
        ),
        ("mistral", "[TOOL_CALLS]add{\"a\": 3}", "", one()),
        ("mistral", "[TOOL_CALLS] clock [ARGS] {}", "", none()),
        // Llama.
        ("llama3_json", "{\"name\": \"add\", \"parameters\": {\"a\": 3}}", "", one()),
        (
            "llama3_json",
            "{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"a\": 3}}",
            "",
            one(),
        ),
        ("llama3_json", "<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 3}}", "", one()),
        (
            "llama3_json",
            "I look. <|python_tag|>{\"name\": \"add\", \"arguments\": {\"a\": 3}}",
            "I look.",
            one(),
        ),
        (
            "llama4_json",
            "<|python_start|>{\"name\": \"add\", \"parameters\": {\"a\": 3}}<|python_end|>",
            "",
            one(),
        ),
        ("llama3_json", "<function=add>{\"a\": 3}</function>", "", one()),
        (
            "llama3_json",
            "<|python_tag|>{\"name\": \"add\", \"parameters\": {\"a\": 3}}; {\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich \\\"é\\\"\"}}",
            "",
            two(),
        ),
        (
            "llama3_json",
            "{\"name\": \"add\", \"parameters\": {\"a\": 3}};{\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich \\\"é\\\"\"}}",
            "",
            two(),
        ),
        (
            "llama3_json",
            "{\"name\": \"add\", \"parameters\": {\"a\": 3}}\n{\"name\": \"weather\", \"parameters\": {\"city\": \"Zürich \\\"é\\\"\"}}",
            "",
            two(),
        ),
        (
            "llama3_json",
            "{\"name\": \"add\", \"parameters\": {\"a\": 3}}; so it is",
            "; so it is",
            one(),
        ),
        (
            "json",
            "[{\"name\": \"add\", \"arguments\": {\"a\": 3}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich \\\"é\\\"\"}}]",
            "",
            two(),
        ),
        // Python.
        ("pythonic", "[add(a=3)]", "", one()),
        ("pythonic", "[add(a=3), weather(city='Zürich \"é\"')]", "", two()),
        (
            "llama4_pythonic",
            "<|python_start|>[add(a=3), weather(city=\"Zürich \\\"é\\\"\")]<|python_end|>",
            "",
            two(),
        ),
        ("pythonic", "[\n  clock(),\n]", "", none()),
        (
            "pythonic",
            "[add(a=3, note='4 < 5 & </b>\\nx', exact=True, maybe=None, list=[1, 2], of={'x': 1})]",
            "",
            mixed(),
        ),
        (
            "sarashina",
            "<|tool_calls|>[{'name': 'add', 'arguments': {'a': 3}}, {'name': 'weather', 'arguments': {'city': 'Zürich \"é\"'}}]",
            "",
            two(),
        ),
        ("sarashina", "Yes. [{'name': 'add', 'arguments': {'a': 3}}]", "Yes.", one()),
        // Arguments between tags.
        (
            "qwen3_coder",
            "<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            one(),
        ),
        (
            "qwen3_coder",
            "<function=add>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            one(),
        ),
        (
            "qwen3_coder",
            "<tool_call><function=add><parameter=a>3</parameter></function></tool_call>",
            "",
            one(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=add>\n<parameter=a>\n3\n</function>\n</tool_call>",
            "",
            one(),
        ),
        ("nemotron", "<tool_call>\n<function=clock>\n</function>\n</tool_call>", "", none()),
        (
            "qwen3_xml",
            "I do.\n<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=note>\n4 < 5 & </b>\nx\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=maybe>\nnull\n</parameter>\n<parameter=list>\n[1, 2]\n</parameter>\n<parameter=of>\n{\"x\": 1}\n</parameter>\n</function>\n</tool_call>",
            "I do.",
            mixed(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=weather>\n<parameter=city>\nZürich \"é\"\n</parameter>\n</function>\n</tool_call>",
            "",
            two(),
        ),
        (
            "glm45",
            "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            "",
            one(),
        ),
        ("glm47", "<tool_call>clock</tool_call>", "", none()),
        (
            "glm47",
            "<tool_call>add<arg_key>a</arg_key><arg_value>3</arg_value></tool_call><tool_call>weather<arg_key>city</arg_key><arg_value>Zürich \"é\"</arg_value></tool_call>",
            "",
            two(),
        ),
        (
            "hy_v4",
            "Yes.<tool_calls:6124c78e><tool_call:6124c78e>add<arg_key:6124c78e>a</arg_key:6124c78e><arg_value:6124c78e>3</arg_value:6124c78e></tool_call:6124c78e><tool_call:6124c78e>weather<arg_key:6124c78e>city</arg_key:6124c78e><arg_value:6124c78e>Zürich \"é\"</arg_value:6124c78e></tool_call:6124c78e></tool_calls:6124c78e>",
            "Yes.",
            two(),
        ),
        ("hy_v4", "<tool_calls><tool_call>clock</tool_call></tool_calls>", "", none()),
        (
            "minimax_m2",
            "<minimax:tool_call>\n<invoke name=\"add\">\n<parameter name=\"a\">3</parameter>\n</invoke>\n<invoke name=\"weather\">\n<parameter name=\"city\">Zürich \"é\"</parameter>\n</invoke>\n</minimax:tool_call>",
            "",
            two(),
        ),
        (
            "minimax_m3",
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"add\">]<]minimax[>[<a>3]<]minimax[>[</a>]<]minimax[>[<note>4 < 5 & </b>\nx]<]minimax[>[</note>]<]minimax[>[<exact>true]<]minimax[>[</exact>]<]minimax[>[<maybe>null]<]minimax[>[</maybe>]<]minimax[>[<list>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</list>]<]minimax[>[<of>]<]minimax[>[<x>1]<]minimax[>[</x>]<]minimax[>[</of>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            "",
            mixed(),
        ),
        (
            "deepseek_v32",
            "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"add\">\n<｜DSML｜parameter name=\"a\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Zürich \"é\"</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "I look.",
            two(),
        ),
        (
            "deepseek_v4",
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"add\">{\"a\": 3}</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "",
            one(),
        ),
        (
            "deepseek_v41",
            "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"add\">\n<｜DSML｜ parameter name=\"a\" string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
            "",
            one(),
        ),
        (
            "step3",
            "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"add\">\n<steptml:parameter name=\"a\">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"weather\"><steptml:parameter name=\"city\">Zürich \"é\"</steptml:parameter></steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
            "",
            two(),
        ),
        (
            "kimi_k3",
            "<|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"add\" index=\"0\"<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|open|> call tool=\"weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Zürich \"é\"<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
            "I look.",
            two(),
        ),
        // JSON between marks.
        (
            "deepseek_v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Zürich \\\"é\\\"\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            two(),
        ),
        (
            "deepseek_v31",
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Zürich \\\"é\\\"\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "I look.",
            two(),
        ),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{\"a\": 3}<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{\"city\": \"Zürich \\\"é\\\"\"}<|tool_call_end|><|tool_calls_section_end|>",
            "",
            two(),
        ),
        (
            "cohere",
            "<|START_RESPONSE|>I look.<|END_RESPONSE|>\n<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"add\", \"parameters\": {\"a\": 3}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Zürich \\\"é\\\"\"}}\n]<|END_ACTION|>",
            "I look.",
            two(),
        ),
        (
            "inkling",
            "<|message_model|><|content_text|>I look.<|end_message|><|message_model|>add<|content_invoke_tool_json|>{\"name\":\"add\",\"args\":{\"a\":3}}<|end_message|><|content_model_end_sampling|>",
            "I look.",
            one(),
        ),
        (
            "gemma4",
            "<|tool_call>call:add{a:3,note:<|\"|>4 < 5 & </b>\nx<|\"|>,exact:true,maybe:null,list:[1,2],of:{x:1}}<tool_call|><|tool_response>",
            "",
            mixed(),
        ),
        (
            "gemma4",
            "<|tool_call>call:add{a:3}<tool_call|><|tool_call>call:weather{city:<|\"|>Zürich \"é\"<|\"|>}<tool_call|>",
            "",
            two(),
        ),
    ]
}
