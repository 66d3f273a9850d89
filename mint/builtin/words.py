"""Ordinary English words for the plain sentences of the pretraining text, so that the tokenizer knows them."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maria Noah Olivia Paul Rosa Sam Tina Victor
    Wendy James Natalia Janet Robert Susan Michael Linda Thomas Sarah
    """
)
PLACES = _words(
    """
    garden kitchen school market city village river forest office station library museum street house park beach
    farm hospital church bridge mountain island airport hotel shop bank field lake factory castle university
    country world room theater store company state north south east west
    """
)
NOUNS = _words(
    """
    apple animal answer arm baby bag ball bird boat book bottle box boy bread bus cake camera car card cat chair
    child clock cloud coat coin computer cow cup daughter day desk dinner doctor dog door dress duck ear egg
    engine eye face family father finger fire fish flag floor flower food foot friend game gift girl glass group
    hand hat head heart horse hour idea job key king knife lamp leaf leg lesson letter light line list machine man
    map meal message minute mirror model money month moon morning mother mouth movie name neck night nose note
    number orange page paper parent part party pen pencil person phone picture piece plan plane plant plate player
    poem point problem program project question radio rain reason result ring road rock rope rule sentence shirt
    shoe side sign sister size snow son song sound soup spoon star stone story student sugar summer sun system
    table teacher team test thing ticket time tool town toy train tree truck uncle value voice wall watch water
    week wheel wind window winter woman word worker year
    """
)
ADJECTIVES = _words(
    """
    able angry available bad beautiful better big black blue bright brown busy careful cheap clean clear cold
    common complete cool correct dark dead deep different difficult dry early easy empty equal expensive fair
    false famous fast final fine flat free fresh friendly full funny future general gentle good gray great green
    happy hard healthy heavy helpful high hot human hungry important interesting kind large last late lazy left
    light likely little local lonely long loud low lucky main modern natural near necessary new nice old open
    orange perfect personal poor popular possible present pretty private public quick quiet rare ready real recent
    red rich right round sad safe same serious sharp short similar simple slow small smart soft special strange
    strong sudden sweet tall thick thin tired total true typical useful usual warm weak wet white whole wide wild
    wise wonderful wrong yellow young
    """
)
# Stems: the sentences add "ed" to them.
VERBS = _words(
    """
    add answer ask attack avoid borrow build burn call carry check clean clear climb close collect color compar
    contain contact cook correct count cover cross deliver describ discover discuss doubt dream drop employ end
    enjoy enter explain expect fill finish fix fold follow form gather guess hand happen heat help hunt join jump
    kick kill laugh lead learn lift look mark match melt mention miss need obtain offer open order own paint pass
    pick plan plant play point pour prefer present press protect provid pull push reach record remember remind
    remov repair repeat report request return reward roll sail search select serv shout show shower sort sound
    start stay suggest support switch talk taste teach test thank touch train trust turn use visit wait walk want
    warn wash watch wish wonder work
    """
)
ADVERBS = _words(
    """
    again almost already always apparently badly carefully certainly clearly completely easily especially exactly
    finally generally gently happily hardly immediately instead later loudly maybe mostly naturally nearly never
    often once only particularly perhaps probably quickly quietly rarely really recently sadly simply slowly
    sometimes soon still suddenly together today tomorrow twice usually very well yesterday
    """
)
COMMON = _words(
    """
    the of and to in is you that it he was for on are as with his they I at be this have from or one had by word
    but not what all were we when your can said there use an each which she do how their if will up other about
    out many then them these so some her would make like him into time has look two more write go see number no
    way could people my than first been call who its now find long down day did get come made may part over new
    sound take only little work know place years live me back give most after thing our just name good sentence
    man think say great where help through much before line right too means old any same tell boy follow came want
    show also around form three small set put end does another well large must big even such because turn here why
    ask went men read need land different home us move try kind hand again change off play spell air away house
    point page letter mother answer found study still learn should world high every near add food between own
    below country plant last school father keep tree never start city earth eye light thought head under story saw
    left few while along might close something seem next hard open example begin life always those both paper
    together got group often run important until children side feet car mile night walk white sea began grow took
    river four carry state once book hear stop without second later miss idea enough eat face watch far really
    almost let above girl sometimes mountain cut young talk soon list song being leave family it's don't can't
    won't I'm you're we'll they've isn't doesn't total cost price half per percent dollars hours minutes per each
    altogether average remaining twice therefore however although instead during against among within since
    whether function return value class import print true false none error string list key data file code model
    user assistant system token monday tuesday wednesday thursday friday saturday january spring buy buys bought
    sell sells sold pay paid pays earn earned spend spent amount double triple fewer extra given gives gave gets
    uses used wants makes takes dozen pound pounds inch inches mile miles meters gallons boxes cents tax salary
    rate ratio equal sum difference product divided multiply increase decrease birthday milk candy fruit vegetable
    restaurant customer business travel drive bread chocolate hour january people's information government
    experience national development environment language actually different important
    """
)
