import pytest

from data_modules.cleaning import cleaned

PAGE = "<p class='x'>Don&#39;t  <b>stop</b>ped &amp; cafÃ© 3 < 4<script>x<y</script>,\n“yes”</p>"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], PAGE),
        (["html"], "Don't stopped & cafÃ© 3 < 4, “yes”"),
        (["html", "unicode"], 'Don\'t stopped & café 3 < 4, "yes"'),
        (["unicode", "html", "punctuation"], "Dont stopped café 3 4 yes"),
        (["html", "punctuation"], "Dont stopped cafÃ© 3 4 “yes”"),
    ],
)
def test_steps_in_their_order(steps, expected):
    assert cleaned(PAGE, steps) == expected


@pytest.mark.parametrize(
    ("text", "step", "expected"),
    [
        ("a < b, c > d & e; x<3", "html", "a < b, c > d & e; x<3"),
        ("</script>a<style>b</style>c<br/>d", "html", "acd"),
        ("<!-- no -->yes", "html", "yes"),
        ("The <style> tag is used; <b>all</b> after it", "html", "The tag is used; all after it"),
        ("a <script> in the head &amp; more", "html", "a in the head & more"),
        ("a <SCRIPT type='x'>y</b></Script >b <style> c", "html", "a b c"),
        ("a <script>x</style> b", "html", "a x b"),
        ("<style-guide>a</style-guide>b", "html", "ab"),
        ("e\u0301", "unicode", "é"),
        ("ﬁne", "unicode", "fine"),
        ("U.S.A. co-op's", "punctuation", "USA coops"),
        ("…–„", "punctuation", "…–„"),
    ],
)
def test_one_step(text, step, expected):
    assert cleaned(text, [step]) == expected


def test_an_unknown_step_is_named():
    message = r"^data\.cleaning=\[stem\]: must be of html, unicode, punctuation$"
    with pytest.raises(ValueError, match=message):
        cleaned("x", ["html", "stem"])
